"""A writer that dies at a chosen call of `files/system.py`: the calls of a job are counted, then each is the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from storage_core.files import system

CHANGING = (
    "open_write", "pwrite", "fsync", "sync_folder", "reserve", "truncate", "rename", "unlink", "make_folder",
    "remove_folder", "set_times",
)  # fmt: skip


GONE = 1 << 22


class Died(BaseException):
    """The process is gone: nothing that it would do next reaches the disk."""


class Clock:
    """Counts the changing calls, and ends the process before call number `last`, or in the middle of it."""

    def __init__(self, last: int | None, torn: bool = False, error: OSError | None = None) -> None:
        self.count, self.last, self.torn, self.error = 0, last, torn, error
        self.log: list[str] = []

    def step(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "open_write" and not (kwargs.get("create") or (len(args) > 1 and args[1])):
            if self.last is not None and self.count > self.last and self.error is None:
                raise Died
            return call(*args, **kwargs)
        self.count += 1
        self.log.append(f"{name} {args[0] if isinstance(args[0], str) else ''}")
        if self.last is None or self.count <= self.last:
            return call(*args, **kwargs)
        if self.error is not None:
            if self.count == self.last + 1:
                raise self.error
            return call(*args, **kwargs)
        if self.torn and name == "pwrite" and self.count == self.last + 1:
            descriptor, data, position = args
            call(descriptor, memoryview(data)[: len(data) // 2], position)
        raise Died


@contextmanager
def stopped_at(last: int | None, torn: bool = False, error: OSError | None = None) -> Iterator[Clock]:
    """Within the block the process lives for `last` changing calls; None counts them. With `error` that call fails."""
    clock = Clock(last, torn, error)
    real = {name: getattr(system, name) for name in CHANGING}

    def counted(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: clock.step(name, real[name], *args, **kwargs)

    for name in CHANGING:
        setattr(system, name, counted(name))
    # The owner of what is staged is a process that will not be there later.
    real |= {"session_process": system.session_process, "process_start": system.process_start}
    system.session_process = lambda _: GONE  # type: ignore[assignment]
    system.process_start = lambda _: 1  # type: ignore[assignment]
    try:
        yield clock
    finally:
        for name, function in real.items():
            setattr(system, name, function)
