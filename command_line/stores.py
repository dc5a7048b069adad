"""The stores that a command was given, and what goes wrong with them as exit codes.

What a store holds is the engines' affair. Source: interface.md 39.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import click

from storage_core import find_stores, open_store
from storage_core.errors import (
    CorruptionError,
    DataLossError,
    FormatError,
    MqStoreError,
    OptionError,
    TornWriteError,
)
from storage_core.store import Store

P = ParamSpec("P")

FINE, FOUND_NOTHING, MISTAKE = 0, 1, 2
DAMAGE = (CorruptionError, DataLossError, FormatError, TornWriteError)


def command(work: Callable[P, int]) -> Callable[P, None]:
    """Makes the number that `work` returns the exit code, and an error of mqstore one line on stderr."""

    @functools.wraps(work)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            code = work(*arguments, **named)
        except MqStoreError as error:
            say(" ".join(str(error).split()))
            code = FOUND_NOTHING if isinstance(error, DAMAGE) else MISTAKE
        except BrokenPipeError:
            sys.stderr.close()  # else Python complains at its end that nobody reads what it wrote
            code = FINE
        except OSError as error:
            if error.filename is None:
                raise
            say(f"{error.filename}: {error.strerror}")
            code = MISTAKE
        click.get_current_context().exit(code)

    return run


def say(text: str) -> None:
    """One line for the user, beside the output."""
    click.echo(f"mqstore: {text}", err=True)


@contextmanager
def one_store(path: str) -> Iterator[Store]:
    """The store at `path`, also in a folder that holds just one. OptionError when there are several."""
    found = find_stores(path)
    if len(found) > 1:
        raise OptionError("STORE", path, f"holds {len(found)} stores; give one of {', '.join(found[:8])}")
    with open_store(found[0]) as store:
        yield store


def all_stores(path: str) -> Iterator[Store]:
    """Every store at `path`, one after the other."""
    for found in find_stores(path):
        with open_store(found) as store:
            yield store
