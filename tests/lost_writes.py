"""What a power failure may leave: changes that no sync confirmed are lost, reordered or torn.

The calls of a run are recorded; then for any moment of it, those that were confirmed are done again on a copy of the
directory as it was, and of the others any choice. Data of a file is confirmed by `fsync` of that file, names in a
folder by `sync_folder` of that folder, and nothing by the order of calls: what POSIX promises, and no more.
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
"""Bytes that a disk writes whole."""


@dataclass(frozen=True)
class Change:
    """One call that changed the disk; paths are relative. `file` numbers the file that its data belongs to, whatever
    its name becomes: those that were there before are numbered by name.
    """

    name: str
    path: str
    file: int | None = None
    target: str = ""
    position: int = 0
    data: bytes = b""

    @property
    def folders(self) -> set[str]:
        """The folders whose names it changes."""
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
        """One call of a function of `system`; one that fails changed nothing."""
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
    """The changes that are made below `root` within the block."""
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
    """Which of the changes are on the disk whatever happens after the last of them."""
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
    """For each moment, choices of the changes before it that survive: none that may be lost, all, and some at random.

    A choice is made once for each set of changes that may be lost.
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
    """A copy `target` of the folder `before`, with the changes that survive made again, in order.

    With `torn` the last surviving write that was not confirmed reaches the disk in part, by blocks.
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
    """A folder on which changes are made again; `_names` are the files that changes speak of, by their numbers."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[int | None, str] = dict(enumerate(files_below(root)))
        self._second: dict[str, str] = {}

    def apply(self, change: Change) -> None:
        """Makes a change, unless what it needs is not there because another one was lost."""
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
        """A file has one name less: its data goes by its second name, where it has one."""
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
