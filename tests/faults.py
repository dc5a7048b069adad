"""The fault injector of all crash tests, between the product and `storage_core.files.system`.

It simulates a process that dies after a given number of calls, a write of which only half reached the disk, a system
error at any one call, and short reads and writes. The effect of a power failure on writes that no sync confirmed is
modelled by `tests.lost_writes`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import disk_error
from storage_core.files import system

CHANGES = (
    "open_write", "pwrite", "fsync", "sync_folder", "reserve", "truncate", "rename", "link", "unlink", "make_folder",
    "remove_folder", "set_times",
)  # fmt: skip
"""Functions that change the disk or confirm a change; crash tests count them. `test_faults` checks the lists."""
READS = (
    "open_read", "pread", "pread_each", "pread_into", "pread_runs", "stat", "stamp", "unchanged",
    "exists", "is_folder", "real_path", "entries", "names", "matching", "data_spans", "is_locked", "is_own",
)  # fmt: skip
"""Functions that only read the disk or its metadata."""
NEITHER = ("close", "release", "is_local", "folder_above", "try_lock", "will_need", "read_soon", "need_no_more")

NOBODY = 1 << 22
"""A process id that cannot exist."""


class Died(BaseException):
    """The process has died: nothing that it would do next reaches the disk."""


@dataclass
class Faults:
    """Counts calls of the functions `counted` and injects a fault into the one after `last` calls; None only counts.

    Without `error` the process dies there, with `torn` in the middle of a write, and changes that its exception
    handlers attempt have no effect. With `error` only that call fails or, if `lasting`, all calls from there on.
    """

    last: int | None = None
    torn: bool = False
    error: OSError | None = None
    counted: tuple[str, ...] = CHANGES
    on_stop: Callable[[str], None] | None = None
    lasting: bool = False
    count: int = 0
    log: list[str] = field(default_factory=list)
    """Each counted call, with its path if it has one."""

    @property
    def struck(self) -> bool:
        """Whether the faulty call has been reached."""
        return self.last is not None and self.count > self.last

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Performs one call of a function of `system`, or injects the fault."""
        if name not in self.counted or not _changes(name, args, kwargs):
            if self.struck and self.error is None and name in CHANGES:
                raise Died
            return real(*args, **kwargs)
        self.count += 1
        self.log.append(f"{name} {args[0] if args and isinstance(args[0], str) else ''}")
        if not self.struck:
            return real(*args, **kwargs)
        first = self.last is not None and self.count == self.last + 1
        if first and self.on_stop is not None:
            self.on_stop(name)
        if self.error is not None:
            if first or self.lasting:
                raise disk_error(self.error, _path_of(args[0] if args else ""))
            return real(*args, **kwargs)
        if first and self.torn and name == "pwrite":
            descriptor, data, position = args
            real(descriptor, memoryview(data)[: len(data) // 2], position)
        raise Died


def _path_of(file: object) -> str:
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)


def _changes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """False for opening an existing file, which changes nothing yet."""
    return name != "open_write" or bool(kwargs.get("create") or (len(args) > 1 and args[1]))


@contextmanager
def struck(faults: Faults) -> Iterator[Faults]:
    """Routes the product's calls inside the block through `faults`."""
    names = {*CHANGES, *faults.counted}
    real = {name: getattr(system, name) for name in names}

    def through(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: faults.call(name, real[name], *args, **kwargs)

    for name in names:
        setattr(system, name, through(name))
    try:
        yield faults
    finally:
        for name, function in real.items():
            setattr(system, name, function)


@contextmanager
def stopped_at(
    last: int | None,
    torn: bool = False,
    error: OSError | None = None,
    on_stop: Callable[[str], None] | None = None,
    lasting: bool = False,
) -> Iterator[Faults]:
    """Inside the block a process, no longer alive afterwards, dies after `last` changes of the disk; None counts them.

    With `error` the next change fails instead, once; with `lasting` all later changes fail.
    """
    with owned_by_nobody(), struck(Faults(last, torn, error, on_stop=on_stop, lasting=lasting)) as faults:
        yield faults


@contextmanager
def owned_by_nobody() -> Iterator[None]:
    """Inside the block, staged files belong to a process that is no longer alive afterwards."""
    real = system.session_process, system.process_start
    system.session_process = lambda _: NOBODY
    system.process_start = lambda _: 1
    try:
        yield
    finally:
        system.session_process, system.process_start = real


@contextmanager
def short_transfers(seed: int, most: int = 1000) -> Iterator[_ShortTransfers]:
    """Inside the block the system transfers at most `most` bytes per read or write, usually fewer, but at least one."""
    proxy = _ShortTransfers(random.Random(seed), most)
    system.os = proxy  # type: ignore[assignment]
    try:
        yield proxy
    finally:
        system.os = os


class _ShortTransfers:
    """Python's module `os` with short transfers; `count` is the number of transfers that were cut short."""

    def __init__(self, chance: random.Random, most: int) -> None:
        self._chance, self._most, self.count = chance, most, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _cut(self, size: int) -> int:
        part = min(size, self._chance.randint(1, self._most))
        self.count += part < size
        return part

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        return os.pread(descriptor, self._cut(size), position)

    def preadv(self, descriptor: int, buffers: list[memoryview], position: int) -> int:
        return os.preadv(descriptor, [buffers[0][: self._cut(len(buffers[0]))]], position)

    def pwrite(self, descriptor: int, data: memoryview, position: int) -> int:
        return os.pwrite(descriptor, data[: self._cut(len(data))], position)
