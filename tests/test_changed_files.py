"""Files that are truncated, removed, replaced or overwritten while they are read, at any moment: the read returns rows
or raises a one-line error of mqstore. No file is memory-mapped, so Python does not crash.

`make test` tries some of the moments, `make test-real-full` all of them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.store import Scan, ScanRequest, Store
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.sampling import SEED, sample

pytestmark = pytest.mark.sampled

LOOKS = ("open_read", "pread", "pread_into", "stat", "entries", "names")
MOMENTS = 3


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)


def _emptied(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


def _replaced(path: Path) -> None:
    path.with_name("other").write_bytes(random.Random(1).randbytes(path.stat().st_size))
    path.with_name("other").rename(path)


def _overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(random.Random(2).randbytes(size))


def _made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], None]] = {
    "cut": _cut, "emptied": _emptied, "removed": Path.unlink, "replaced": _replaced, "overwritten": _overwritten,
    "made a folder": _made_a_folder, "all removed": lambda path: shutil.rmtree(path.parent),
}  # fmt: skip


def _read(store: Store, **request: Any) -> None:
    for piece in store.snapshot().plan(ScanRequest(**request)):
        for batch in piece.read():
            batch.validate(full=True)


READS: dict[str, Callable[[Store], object]] = {
    "load": lambda store: _read(store, min_partitions=3),
    "scan=log": lambda store: _read(store, scan=Scan.LOG),
    "find": lambda store: _read(store, keys=("no-such-key",)),
    "verify": lambda store: list(store.verify()),
    "segments": lambda store: list(store.view("segments")),
    "repair": lambda store: store.repair(dry_run=True),
}
STORES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "rocketmq": (lambda folder: archive.unpack("collisions-4.9.3", folder), "[cdi]*/**/*"),
    "rabbitmq": (lambda folder: golden.unpack("s3_mixed_kill9", folder) / golden.DEFAULT_VHOST, "**/*.*"),
}
"""How each store is made, and which of its files are changed."""


@contextmanager
def changed_before(number: int, change: Callable[[], None]) -> Iterator[list[str]]:
    """Calls `change` before disk access number `number` inside the block. Yields the names of the accesses."""
    noted: list[str] = []

    def through(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            noted.append(name)
            if len(noted) - 1 == number:
                change()
            return real(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in LOOKS:
            patch.setattr(system, name, through(name, getattr(system, name)))
        yield noted


def _tried(store: Path, work: Callable[[Store], object]) -> str | None:
    """The class name of the error of a read, whose text must be one line; None if there is none."""
    try:
        with open_store(str(store)) as opened:
            work(opened)
    except MqStoreError as error:
        message = str(error)
        kind = type(error).__name__
    else:
        return None
    assert "\n" not in message
    return kind


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("engine", STORES)
def test_a_file_that_changes_while_it_is_read(engine: str, read: str, tmp_path: Path) -> None:
    make, pattern = STORES[engine]
    origin = make(tmp_path / "origin")
    files = sorted(path.relative_to(origin) for path in origin.glob(pattern) if path.is_file())
    with changed_before(-1, lambda: None) as looks:
        outcome = _tried(origin, READS[read])
    if outcome == "UnsupportedFormatError":  # this engine does not support the read
        return
    assert len(looks) > 10
    chance = random.Random(f"{SEED} {engine} {read}")
    ends = set()
    for name, change in CHANGES.items():
        for number in sample(range(len(looks)), MOMENTS, f"{engine} {read} {name}"):
            path = shutil.copytree(origin, tmp_path / "copy")
            victim = path / chance.choice(files)
            with changed_before(number, partial(change, victim)):
                ends.add(_tried(path, READS[read]))
            shutil.rmtree(path, ignore_errors=True)
    assert len(ends) > 1 or read not in ("load", "verify"), "nothing was noticed"
