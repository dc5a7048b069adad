"""The possible states after a power failure: changes that no sync confirmed are lost, reordered or torn.

The calls of a run are recorded. For any moment of the run, the confirmed changes and an arbitrary subset of the others
are then applied to a copy of the original directory. `fsync` confirms the data of a file, `sync_folder` the names in a
folder, and the order of calls confirms nothing: POSIX promises no more than that.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage_core.files import system
from tests.faults import CHANGES

TWO_PATHS = ("rename", "link")
BLOCK = 512
"""Bytes that a disk writes atomically."""


@dataclass(frozen=True)
class Change:
    """One call that changed the disk; paths are relative. `file` is the number of the file that the data belongs to and
    survives renames; files that existed before are numbered in order of name.
    """

    name: str
    path: str
    file: int | None = None
    target: str = ""
    position: int = 0
    data: bytes = b""

    @property
    def folders(self) -> set[str]:
        """The folders whose entries the call changes."""
        if self.name == "link":
            return {os.path.dirname(self.target)}
        named = self.name in ("open_write", "rename", "unlink", "make_folder", "remove_folder")
        return {os.path.dirname(path) for path in (self.path, self.target) if path} if named else set()


def files_below(folder: Path) -> list[str]:
    """Relative paths of all files, sorted."""
    found = (Path(above) / name for above, _, names in os.walk(folder) for name in names)
    return sorted(str(path.relative_to(folder)) for path in found)


class Recorder:
    """The changes below `root` in the order in which they were made."""

    def __init__(self, root: Path) -> None:
        self._root, self.changes = os.path.realpath(root), list[Change]()
        there = files_below(root)
        self._numbers = {os.stat(root / path).st_ino: number for number, path in enumerate(there)}
        self._next = len(there)

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Performs and records one call of a function of `system`; a call that fails changed nothing."""
        new = name == "open_write" and not os.path.exists(args[0])
        noted = self._noted(name, args)
        made = real(*args, **kwargs)
        if new:
            self._numbers[os.fstat(made).st_ino] = self._next
            noted = [Change(name, self._relative(args[0]), self._next)]
            self._next += 1
        self.changes += [change for change in noted if not change.path.startswith("..")]
        return made

    def _relative(self, path: str) -> str:
        found = os.path.relpath(os.path.realpath(path), self._root)
        return "" if found == "." else found

    def _noted(self, name: str, args: tuple[Any, ...]) -> list[Change]:
        if name == "open_write":
            return []
        if name == "make_folder":
            return self._folders_to_be(args[0])
        if not isinstance(args[0], int):
            return [Change(name, self._relative(args[0]), target=self._relative(args[1]) if name in TWO_PATHS else "")]
        path = self._relative(os.readlink(f"/proc/self/fd/{args[0]}"))
        change = Change(name, path, self._numbers.get(os.fstat(args[0]).st_ino))
        if name == "pwrite":
            return [replace(change, data=bytes(args[1]), position=args[2])]
        return [replace(change, position={"reserve": sum(args[1:]), "truncate": args[-1]}.get(name, 0))]

    def _folders_to_be(self, path: str) -> list[Change]:
        found, path = [], os.path.abspath(path)
        while not os.path.exists(path):
            found.append(Change("make_folder", self._relative(path)))
            path = os.path.dirname(path)
        return found[::-1]


@contextmanager
def recorded(root: Path) -> Iterator[list[Change]]:
    """Records the changes made below `root` inside the block."""
    recorder = Recorder(root)
    real = {name: getattr(system, name) for name in CHANGES}

    def through(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: recorder.call(name, real[name], *args, **kwargs)

    for name in CHANGES:
        setattr(system, name, through(name))
    try:
        yield recorder.changes
    finally:
        for name, function in real.items():
            setattr(system, name, function)


def confirmed(changes: Sequence[Change]) -> list[bool]:
    """Which of the changes are certain to be on the disk if power fails after the last of them."""
    synced_files: set[int | None] = set()
    synced_folders: set[str] = set()
    found = []
    for change in reversed(changes):
        if change.name == "fsync":
            synced_files.add(change.file)
        elif change.name == "sync_folder":
            synced_folders.add(change.path)
        if change.folders:
            found.append(change.folders <= synced_folders)
        else:
            found.append(change.name in ("fsync", "sync_folder", "set_times") or change.file in synced_files)
    return found[::-1]


def survivors(changes: Sequence[Change], seed: int, choices: int = 3) -> Iterator[tuple[int, list[bool]]]:
    """For each moment, which earlier changes survive: of those that may be lost none, all, or a random selection.

    Moments with the same set of changes that may be lost are covered once.
    """
    chance = random.Random(seed)
    before: list[int] = []
    for moment in range(len(changes) + 1):
        sure = confirmed(changes[:moment])
        open_ = [number for number, safe in enumerate(sure) if not safe]
        if open_ == before and moment:
            continue
        before = open_
        masks = [set[int](), set(open_), *({n for n in open_ if chance.random() < 0.5} for _ in range(choices))]
        if open_:
            masks += [set(open_[:-1]), set(open_[1:]), {open_[-1]}]
        for mask in {frozenset(mask) for mask in masks}:
            yield moment, [safe or number in mask for number, safe in enumerate(sure)]


def left_behind(
    before: Path, changes: Sequence[Change], survives: Sequence[bool], target: Path, torn: random.Random | None = None
) -> Path:
    """Copies the folder `before` to `target` and applies the surviving changes in order.

    With `torn` only some leading blocks of the last surviving unconfirmed write reach the disk.
    """
    shutil.copytree(before, target)
    changes = changes[: len(survives)]
    sure = confirmed(changes)
    writes = [n for n, change in enumerate(changes) if change.name == "pwrite" and survives[n] and not sure[n]]
    disk = _Disk(target)
    for number, change in enumerate(changes):
        if torn is not None and number in writes[-1:]:
            change = replace(change, data=change.data[: torn.randrange(len(change.data) // BLOCK + 1) * BLOCK])
        if survives[number]:
            disk.apply(change)
    return target


class _Disk:
    """A folder on which changes are replayed; `_names` maps the file numbers of changes to current names."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[int | None, str] = dict(enumerate(files_below(root)))
        self._second: dict[str, str] = {}

    def apply(self, change: Change) -> None:
        """Applies a change, unless something that it needs is missing because another change was lost."""
        path = os.path.join(self._root, change.path)
        try:
            if change.name in ("pwrite", "truncate", "reserve"):
                self._write(change)
            elif change.name == "open_write":
                Path(path).touch()
                self._names[change.file] = change.path
            elif change.name == "rename":
                os.rename(path, os.path.join(self._root, change.target))
                self._rename(change.path, change.target)
            elif change.name == "link":
                os.link(path, os.path.join(self._root, change.target))
                self._second[change.path] = change.target
            elif change.name == "unlink":
                os.unlink(path)
                self._forget(change.path)
            elif change.name == "make_folder":
                os.mkdir(path)
            elif change.name == "remove_folder":
                os.rmdir(path)
        except OSError:
            return

    def _forget(self, path: str) -> None:
        """Removes one name of a file, which then goes by its second name if it has one."""
        second = self._second.pop(path, None)
        named = {file: second if name == path else name for file, name in self._names.items()}
        self._names = {file: name for file, name in named.items() if name is not None}

    def _rename(self, path: str, target: str) -> None:
        self._names = {file: name for file, name in self._names.items() if name != target}
        for file, name in self._names.items():
            if name == path or name.startswith(path + "/"):
                self._names[file] = target + name[len(path) :]

    def _write(self, change: Change) -> None:
        name = self._names.get(change.file)
        if name is None:
            return
        path = os.path.join(self._root, name)
        with open(path, "r+b") as file:
            if change.name == "pwrite":
                file.seek(change.position)
                file.write(change.data)
            elif change.name == "truncate" or change.position > os.path.getsize(path):
                file.truncate(change.position)
