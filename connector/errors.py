"""How Spark shows mqstore's errors: one line for a user's mistake or a damaged store, the traceback for a bug.

When to raise which error is up to `storage_core.errors` and the rest of the connector.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from storage_core.errors import MqStoreError

OWN_PACKAGES = ("connector", "storage_core", "pyspark_mqstore", "mqstore")
P = ParamSpec("P")
R = TypeVar("R")

# Spark prints the class's module and name before the text; `builtins` is the one module that Python leaves out.
# The text is complete: `Exception.__init__` adds no second class name.
_Shown = type(
    "mqstore",
    (MqStoreError,),
    {"__module__": "builtins", "__doc__": "An error as Spark prints it.", "__init__": Exception.__init__},
)


def host_name() -> str:
    """This machine's name, for errors about paths: driver and executors may be different machines."""
    return socket.gethostname()


def in_spark_worker() -> bool:
    """Whether this process was started by Spark to run Python code (planner, task, stream runner)."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")


def one_line(error: BaseException) -> str | None:
    """The text for the user, or None if the error is a bug, which needs its traceback.

    Operating system errors that name a path are for the user to fix: a missing permission, an unmounted or failing
    disk. So is a missing library: Spark runs another Python than the one that mqstore was installed in.
    """
    kind = type(error).__name__
    if isinstance(error, MqStoreError):
        return _flat(str(error))
    if isinstance(error, PermissionError) and error.filename is not None:
        return _flat(
            f"{kind}: {error.filename}: permission denied on host {host_name()}; "
            "read as a user who may, or copy the store"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return _flat(
            f"{kind}: {error.filename}: {error.strerror} on host {host_name()}; "
            "check that the store is there and readable on every machine that runs Spark"
        )
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in OWN_PACKAGES:
        return _flat(
            f"{kind}: {sys.executable}, which runs Spark's Python workers on host {host_name()}, has no module "
            f"{error.name}; install mqstore there, or set PYSPARK_PYTHON to a Python that has it"
        )
    return None


def shown_in_one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator of every method that Spark calls: turns errors known to `one_line` into errors without traceback.

    Outside Spark's workers the original error propagates. Spark reads SPARK_HIDE_TRACEBACK when it writes the error,
    and the process ends right afterwards, so the variable affects no other query.
    """
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from cast("Iterator[Any]", method(*args, **kwargs))
            except Exception as error:
                _show(error)
                raise

        return cast("Callable[P, R]", generate)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            _show(error)
            raise

    return call


def warn(text: str) -> None:
    """Writes one line to stderr: from a planner worker it reaches the user's console, from an executor its log."""
    sys.stderr.write(f"mqstore: {_flat(text)}\n")
    sys.stderr.flush()


def _show(error: Exception) -> None:
    if isinstance(error, _Shown) or not in_spark_worker():
        return
    text = one_line(error)
    if text is not None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise _Shown(text) from None


def _flat(text: str) -> str:
    return " ".join(text.split("\n")) if "\n" in text else text
