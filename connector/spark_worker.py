"""Two habits of the daemon that forks Spark's Python workers, mended inside a worker that works for us.

It prints a traceback, after the right answer, when a query has rows enough: `show()`, `limit`, `take` and `first` close
the connection while a worker still writes its next batch. And it collects garbage after each plan, task and commit,
over every object of every module that was ever loaded: the worker's next task waits for that, and tasks of other
workers share their cores with it.
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

DAEMON = "pyspark.daemon"
CLOSED = (BrokenPipeError, ConnectionResetError)


_frozen_modules = 0


def prepare_worker() -> None:
    """At the start of each plan, task and commit. Does nothing in a process that Spark's daemon did not fork."""
    daemon = sys.modules.get("__main__")
    if daemon is None or str(getattr(daemon.__spec__, "name", "")) != DAEMON:
        return
    _expect_closed_connection(daemon)
    _leave_modules_out_of_collections()


def _expect_closed_connection(daemon: ModuleType) -> None:
    """Nothing is printed when Spark closes the connection early.

    The process is one of Spark's workers and works for this query, so nobody else's output changes but that of queries
    that reuse the worker.
    """
    printer = getattr(daemon, "traceback", None)
    if isinstance(printer, ModuleType):
        daemon.traceback = _Printer(printer)  # type: ignore[attr-defined]
        daemon.print = _print_unless_closed  # type: ignore[attr-defined]


def _leave_modules_out_of_collections() -> None:
    """What earlier tasks loaded is not gone through again: with numba that takes longer than a small task.

    The daemon has just collected, so what is set aside for good is in use, and only new modules are a reason to.
    """
    global _frozen_modules  # noqa: PLW0603 (one process, one garbage collector)
    if len(sys.modules) > _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)


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
