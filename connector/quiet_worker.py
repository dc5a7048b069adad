"""Silences one traceback of Spark's own: its Python workers print one when a query has rows enough and stops reading.

`show()`, `limit`, `take` and `first` close the connection while a worker still writes its next batch. PySpark's daemon
then prints a BrokenPipeError on the console, after the right answer. Everything else is printed as before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

DAEMON = "pyspark.daemon"
CLOSED = (BrokenPipeError, ConnectionResetError)


def expect_closed_connection() -> None:
    """In a process that Spark's daemon forked: nothing is printed when Spark closes the connection early.

    Does nothing anywhere else. The process is one of Spark's workers and reads for this query, so nobody else's output
    changes but that of queries that reuse the worker.
    """
    daemon = sys.modules.get("__main__")
    if daemon is None or str(getattr(daemon.__spec__, "name", "")) != DAEMON:
        return
    printer = getattr(daemon, "traceback", None)
    if isinstance(printer, ModuleType):
        daemon.traceback = _Printer(printer)  # type: ignore[attr-defined]
        daemon.print = _print_unless_closed  # type: ignore[attr-defined]


class _Printer:
    """The module `traceback` as PySpark's daemon sees it, but for errors of a connection that was closed."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def print_exc(self, *args: Any, **named: Any) -> None:
        """Prints the current exception, unless Spark closed the connection."""
        if not isinstance(sys.exc_info()[1], CLOSED):
            self._module.print_exc(*args, **named)


def _print_unless_closed(*values: object, **named: Any) -> None:
    """The daemon's `print`, which tells of the same error where spark.python.daemon.killWorkerOnFlushFailure is off."""
    if not isinstance(sys.exc_info()[1], CLOSED):
        print(*values, **named)  # noqa: T201 (PySpark's own words)
