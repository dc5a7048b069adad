"""Text on stdout, and its errors: a full disk is reported in one line, a closed pipe ends the command."""

from __future__ import annotations

import sys

from storage_core.errors import MqStoreError


class OutputError(MqStoreError):
    """The requested output could not be written: a full disk, a missing folder, no permission."""


def emit(text: str) -> None:
    """Writes text to stdout as it is. Raises OutputError, BrokenPipeError."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from None


def line(text: str) -> None:
    """Writes a line to stdout."""
    emit(f"{text}\n")


def flush() -> None:
    """Flushes stdout to the system. Raises OutputError, BrokenPipeError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> OutputError:
    """The error of a failed write to stdout."""
    return OutputError(f"the output cannot be written: {error.strerror}")
