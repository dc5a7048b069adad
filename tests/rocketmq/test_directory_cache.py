"""The cached listing of a store's folders: the same one while nothing changes, a new one after every change."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.files import system
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.recovery import directory_cache
from storage_core.rocketmq.recovery.directory_cache import cached_listing
from storage_core.rocketmq.recovery.recovery_cache import cached_verdict
from storage_core.rocketmq.recovery.verdict import Rules
from tests.support.rocketmq_orders import orders_store

TICK_S = 0.02
"""Longer than a tick of a file system's clock."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    options = {"commitLogFileSize": 40_000, "indexSlots": 50, "indexEntries": 301}
    return orders_store(tmp_path / "store", 400, queues=4, **options)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes count as old a moment after they were made."""
    monkeypatch.setattr(directory_cache, "SETTLED_NS", -(1 << 62))
    time.sleep(TICK_S)


def looked_at(store: Path) -> None:
    for _ in range(2):
        cached_listing(str(store))
    time.sleep(TICK_S)


def one_of(store: Path, pattern: str) -> Path:
    return sorted(store.glob(pattern))[0]


def sized(store: Path) -> None:
    """Gives a file that had no length when it was listed a length; its folder does not change."""
    with one_of(store, "consumequeue/*/*/99999999999999999980").open("r+b") as file:
        file.truncate(100)


def same_times(store: Path) -> None:
    path = one_of(store, "commitlog/0*")
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(store: Path) -> None:
    path = one_of(store, "consumequeue/*/*/0*")
    aside = path.with_name("aside")
    aside.write_bytes(path.read_bytes())
    aside.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a log file": lambda store: (store / "commitlog" / f"{1 << 40:020d}").write_bytes(b"x"),
    "a topic": lambda store: (store / "consumequeue" / "new" / "0").mkdir(parents=True),
    "a queue": lambda store: (one_of(store, "consumequeue/*") / "77").mkdir(),
    "a queue file": lambda store: (one_of(store, "consumequeue/*/*") / f"{1 << 40:020d}").write_bytes(b"x" * 20),
    "a lost queue file": lambda store: one_of(store, "consumequeue/*/*/0*").unlink(),
    "a file gets its length": sized,
    "a link gets its target": lambda store: (store / "elsewhere").write_bytes(b"x" * 20),
    "bytes written, time set back": same_times,
    "a file replaced": replaced,
    "abort": lambda store: (store / "abort").touch(),
    "the checkpoint": lambda store: (store / "checkpoint").write_bytes(bytes(4095) + b"\x07"),
    "a mark of 5.x": lambda store: (store / "compaction").mkdir(),
}


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_seen(store: Path, name: str) -> None:
    folder = one_of(store, "consumequeue/*/*")
    (folder / "99999999999999999980").touch()
    (folder / "88888888888888888880").symlink_to(store / "elsewhere")
    (store / "checkpoint").write_bytes(bytes(4096))
    looked_at(store)
    before = cached_listing(str(store))
    assert cached_listing(str(store)) is before
    CHANGES[name](store)
    seen = cached_listing(str(store))
    now = list_store(str(store))
    assert (seen.signature, seen.queues.keys()) == (now.signature, now.queues.keys())
    if name != "the checkpoint":  # its last bytes mean nothing
        assert seen is not before
    looked_at(store)
    assert cached_listing(str(store)).signature == now.signature


@pytest.mark.usefixtures("settled")
def test_an_unchanged_store_is_not_listed_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(store)
    monkeypatch.setattr(directory_cache, "list_store", None)
    assert cached_listing(str(store)).log.files


def test_what_has_just_changed_is_listed_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one clock tick have the same stamp."""
    looked_at(store)
    monkeypatch.setattr(directory_cache, "list_store", lambda *_: pytest.fail("listed"))
    with pytest.raises(pytest.fail.Exception):
        cached_listing(str(store))


@pytest.mark.usefixtures("settled")
def test_an_open_store_finds_what_was_written_since(store: Path) -> None:
    with open_store(str(store)) as reader:
        rows = _rows(reader, "ORD-0000000007")
        for number in range(3):
            assert _rows(reader, "ORD-0000000007") == rows
            assert _rows(reader, f"new-{number}") == []
            with open_store(str(store)) as writer:
                row = {"topic": "orders", "key": f"new-{number} ORD-0000000007", "body": b"x", "queueId": 0}
                writer.append(_table([row]))
            time.sleep(TICK_S)
            (found,) = _rows(reader, f"new-{number}")
            rows = [*rows, found]
            assert _rows(reader, "ORD-0000000007") == rows


def test_trusted_queues_grow_through_a_map(store: Path) -> None:
    """A broker writes units through a memory map: neither size nor time of the file need change."""
    listing = list_store(str(store))
    before = cached_verdict(listing, Rules.NONE)
    assert cached_verdict(listing, Rules.NONE) is before
    key, bounds = next(iter(before.queues.items()))
    with open(listing.queues[key].chain.files[0].path, "r+b") as file:
        file.seek(20 * bounds.stop)
        file.write(struct.pack(">qiq", 0, 284, 0))
    assert cached_verdict(listing, Rules.NONE).queues[key].stop == bounds.stop + 1


@pytest.mark.usefixtures("settled")
def test_a_warm_lookup_opens_few_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(str(store)) as reader:
        for number in range(3):
            _rows(reader, f"ORD-{number:010d}")
        opened = []
        open_read = system.open_read
        monkeypatch.setattr(system, "open_read", lambda path: opened.append(path) or open_read(path))
        monkeypatch.setattr(system, "entries", lambda path: pytest.fail(path) if "queue" in path else entries(path))
        assert len(_rows(reader, "ORD-0000000321")) == 1
    assert len([path for path in opened if "consumequeue" in path]) <= 4
    assert len([path for path in opened if "commitlog" in path]) <= 4


entries = system.entries


def _rows(store, key: str) -> list[dict]:
    return [row for batch in store.find(key=key) for row in batch.to_pylist()]


def _table(rows: list[dict]):
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def test_opening_loads_one_engine(store: Path) -> None:
    code = (
        "import sys; from storage_core import open_store; open_store(sys.argv[1], recovery='none').queues();"
        "print([name for name in sys.modules if name.endswith(('rabbitmq.vhost', 'rabbitmq.snapshot'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
