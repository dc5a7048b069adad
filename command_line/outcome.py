"""How a command ends: its exit code, and one line on stderr for any error.

Source: interface.md 39: 0; 1 if damage or nothing was found; 2 for the user's mistake. A signal ends it as shells
expect, with 128 plus the signal's number.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec

import click

from command_line.output.lines import OutputError, flush
from command_line.signals import Signals
from command_line.wording import error_text
from storage_core.errors import CorruptionError, DataLossError, FormatError, MqStoreError, TornWriteError

P = ParamSpec("P")

FINE, FOUND_NOTHING, DAMAGED, MISTAKE = 0, 1, 1, 2
DAMAGE = (CorruptionError, DataLossError, FormatError, TornWriteError)


def exit_code(work: Callable[P, int]) -> Callable[P, None]:
    """Uses the return value of `work` as the exit code, and reports errors that a user can cause in one stderr line."""

    @functools.wraps(work)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        click.get_current_context().exit(_ended(functools.partial(work, *arguments, **named), bool(named.get("queue"))))

    return run


def say(text: str) -> None:
    """Prints one line for the user to stderr, apart from the output."""
    click.echo(f"mqstore: {text}", err=True)


def code_of(error: MqStoreError) -> int:
    """The exit code of an error: 1 for a damaged store, otherwise 2."""
    return DAMAGED if isinstance(error, DAMAGE) else MISTAKE


def text_of(error: OSError) -> str:
    """The text of an error of the operating system, on one line."""
    text = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    return f"{text}; try again as a user who may" if isinstance(error, PermissionError) and error.filename else text


def _ended(work: Callable[[], int], by_queue: bool) -> int:
    signals = Signals()
    try:
        with signals.raised():
            code = work()
            flush()
        return code
    except BaseException as error:
        # An exception that a signal raises inside a library's import or callback may surface as a different one.
        if signals.number is not None:
            return _stopped(128 + signals.number)
        exit_code = _reported(error, by_queue)
        if exit_code is None:
            raise
        return exit_code


def _reported(error: BaseException, by_queue: bool) -> int | None:
    """Reports an error that the user can do something about and returns its exit code; None for any other."""
    match error:
        case MqStoreError():
            if isinstance(error, OutputError):
                forget_output()
            say(error_text(error, by_queue))
            return code_of(error)
        case BrokenPipeError():
            # The reader of the output has closed the pipe.
            forget_output()
            return FINE
        case KeyboardInterrupt():
            return _stopped(128 + signal.SIGINT)
        case OSError():
            say(text_of(error))
            return MISTAKE
    return None


def _stopped(code: int) -> int:
    forget_output()
    say("stopped")
    return code


def forget_output() -> None:
    """Points stdout to the null device: flushing the rest of its buffer would fail again when Python exits."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a real file, as in tests
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
