"""Text on stdout, and what goes wrong there: a full disk is an error in one line, a closed pipe ends the command."""

from __future__ import annotations

import sys

from storage_core.errors import MqStoreError


class OutputError(MqStoreError):
    """What was asked for could not be written: a full disk, a folder that is not there, no permission."""


def emit(text: str) -> None:
    """Writes text to stdout as it is. Raises OutputError, BrokenPipeError."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error) from None


def line(text: str) -> None:
    """Writes a line to stdout."""
    emit(f"{text}\n")


def flush() -> None:
    """Hands what was written to the system. Raises OutputError, BrokenPipeError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error) from None


def _unwritable(error: OSError) -> OutputError:
    return OutputError(f"the output cannot be written: {error.strerror}")
