"""Works around two behaviours of the daemon that forks Spark's Python workers, inside a worker that runs mqstore.

The daemon prints a traceback, after the right answer, when a query has enough rows: `show()`, `limit`, `take` and
`first` close the connection while a worker is still writing its next batch. It also collects garbage after each plan,
task and commit, over every object of every module that was ever loaded: the worker's next task waits for that, and
tasks of other workers share their cores with it.
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
    """Called at the start of each plan, task and commit. Does nothing in a process not forked by Spark's daemon."""
    daemon = sys.modules.get("__main__")
    if daemon is None or str(getattr(daemon.__spec__, "name", "")) != DAEMON:
        return
    _expect_closed_connection(daemon)
    _leave_modules_out_of_collections()


def _expect_closed_connection(daemon: ModuleType) -> None:
    """Makes the daemon print nothing when Spark closes the connection early.

    The process is a Spark worker that runs this query, so the only other output that changes is that of queries that
    reuse the worker.
    """
    printer = getattr(daemon, "traceback", None)
    if isinstance(printer, ModuleType):
        daemon.traceback = _Printer(printer)  # type: ignore[attr-defined]
        daemon.print = _print_unless_closed  # type: ignore[attr-defined]


def _leave_modules_out_of_collections() -> None:
    """Excludes what earlier tasks loaded from garbage collection: with numba that scan takes longer than a small task.

    The daemon has just collected, so everything that is frozen for good is in use. Freezes only if there are new
    modules.
    """
    global _frozen_modules  # noqa: PLW0603 (one process, one garbage collector)
    if len(sys.modules) > _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)


class _Printer:
    """The module `traceback` as PySpark's daemon sees it, without errors of a closed connection."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def print_exc(self, *args: Any, **named: Any) -> None:
        """Prints the current exception, unless Spark closed the connection."""
        if not isinstance(sys.exc_info()[1], CLOSED):
            self._module.print_exc(*args, **named)


def _print_unless_closed(*values: object, **named: Any) -> None:
    """The daemon's `print`, which reports the same error if spark.python.daemon.killWorkerOnFlushFailure is off."""
    if not isinstance(sys.exc_info()[1], CLOSED):
        print(*values, **named)  # noqa: T201 (PySpark's own words)
