"""A lookup that finds a few messages takes a fast path: its rows equal those of the plan, and it reads little."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.files import system
from storage_core.rocketmq.read import snapshot as snapshot_module
from storage_core.store import Mode, ScanRequest, Snapshot, Store
from tests.golden import archive
from tests.support.rocketmq_orders import orders_store


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the fast path answered, for each lookup from now on."""
    outcomes: list[bool] = []
    few_messages = snapshot_module.few_messages

    def noted(*args: Any) -> pa.RecordBatch | None:
        batch = few_messages(*args)
        outcomes.append(batch is not None)
        return batch

    monkeypatch.setattr(snapshot_module, "few_messages", noted)
    return outcomes


def both(store: Store, **fields: Any) -> tuple[pa.Table, pa.Table]:
    """The rows of a lookup, and those of its plan."""
    snapshot, request = store.snapshot(), ScanRequest(**fields)
    schema = snapshot.schema(request)
    planned = pa.Table.from_batches(Snapshot.read(snapshot, request), schema)
    return pa.Table.from_batches(snapshot.read(request), schema), planned


def some_words(store: Store) -> tuple[list[str], list[str]]:
    """Some words of KEYS, and some message ids."""
    columns = pa.Table.from_batches(
        Snapshot.read(store.snapshot(), ScanRequest(columns=("keys", "msgId"), mode=Mode.DROPMALFORMED)),
        pa.schema([("keys", pa.list_(pa.string())), ("msgId", pa.string())]),
    )
    words = sorted({word for words in columns["keys"].to_pylist() for word in words or ()})
    ids = sorted(set(columns["msgId"].to_pylist()))
    r = random.Random(len(words))
    return r.sample(words, min(4, len(words))), r.sample(ids, min(2, len(ids)))


@pytest.mark.parametrize("name", archive.names())
def test_rows_of_every_fixture_are_those_of_the_plan(name: str, tmp_path: Path, answered: list[bool]) -> None:
    with open_store(str(archive.unpack(name, tmp_path))) as store:
        words, ids = some_words(store)
        requests = [{"keys": (word,)} for word in [*words, "no-such-key"]] + [{"message_ids": (one,)} for one in ids]
        for fields in [*requests, {"keys": tuple(words[:3])}, {"keys": tuple(words[:1]), "columns": ("body", "msgId")}]:
            found, planned = both(store, mode=Mode.DROPMALFORMED, **fields)
            assert found.equals(planned), fields
    assert len(answered) >= 5


def test_most_lookups_take_the_short_road(tmp_path: Path, answered: list[bool]) -> None:
    root = orders_store(tmp_path / "store", 400, commitLogFileSize=40_000, indexSlots=50, indexEntries=301)
    with open_store(str(root)) as store:
        for number in range(0, 400, 9):
            found, planned = both(store, keys=(f"ORD-{number:010d}",))
            assert found.equals(planned)
            assert found.num_rows == 1
        found, planned = both(store, keys=tuple(f"ORD-{number:010d}" for number in (7, 23, 39)), topics=("ship00",))
        assert found.num_rows == 3
        assert found.equals(planned)
        found, planned = both(store, message_ids=(f"7F000001{11:024X}",))
        assert found.equals(planned)
        assert found.num_rows == 1
    # The last id can also be read as an address of the log, so the bytes there have to be examined.
    assert answered == [True] * 46 + [False]


def harmed(store: Path, where: str) -> None:
    """Damages bytes that a lookup of message 100 would read."""
    path = next(path for path in (store / "commitlog").iterdir() if b"ORD-0000000100" in path.read_bytes())
    data = bytearray(path.read_bytes())
    at = data.index(b"ORD-0000000100")
    body = data.index(f"{100:010d}".encode()) if where == "body" else at
    data[{"body": body, "key": at + 5, "name": at - 3}[where]] ^= 0x1
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["body", "key", "name"])
def test_what_is_damaged_is_left_to_the_plan(tmp_path: Path, answered: list[bool], where: str) -> None:
    root = orders_store(tmp_path / "store", 400, commitLogFileSize=10_000, indexSlots=50, indexEntries=301)
    harmed(root, where)
    with open_store(str(root)) as store:
        if where == "body":
            with pytest.raises(CorruptionError):
                list(store.find(key="ORD-0000000100"))
        found, planned = both(store, keys=("ORD-0000000100",), mode=Mode.DROPMALFORMED)
        assert found.equals(planned)
        assert not any(answered)
        found, planned = both(store, keys=("ORD-0000000100",), verify_crc=False)
        assert found.equals(planned)
        assert answered[-1] == (where == "body")


def test_neighbours_and_queues_that_were_cut_are_left_to_the_plan(tmp_path: Path, answered: list[bool]) -> None:
    root = orders_store(tmp_path / "store", 400, commitLogFileSize=1 << 20)
    near = ("ORD-0000000016", "ORD-0000000080")
    with open_store(str(root)) as store:
        found, planned = both(store, keys=near)
        assert found.equals(planned)
    assert answered == [False]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / ".mqstore")
    with open_store(str(root)) as store:
        found, planned = both(store, keys=near[:1])
        assert found.equals(planned)
    assert found.num_rows == 1
    assert answered == [False, False]


def test_a_warm_lookup_touches_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten times the index files, ten times the headers and slots; of log and queues, one record and one entry."""
    calls: dict[int, Counter[str]] = {}
    for count, entries in ((400, 4001), (400, 81)):
        root = orders_store(tmp_path / f"store-{entries}", count, indexSlots=2000, indexEntries=entries)
        with monkeypatch.context() as patch, open_store(str(root)) as store:
            for _ in range(3):
                list(store.find(key="ORD-0000000123"))
            counted = calls[len(list((root / "index").iterdir()))] = Counter()
            for name in ("open_read", "pread", "pread_into", "entries"):
                patch.setattr(system, name, _counted(counted, name, getattr(system, name)))
            (batch,) = store.find(key="ORD-0000000123")
            assert batch.column("key").to_pylist() == ["ORD-0000000123"]
    (few, less), (many, more) = sorted(calls.items())
    assert many >= 10 * few
    assert less["open_read"] <= 10
    assert more["pread"] - less["pread"] <= (many - few) * (1 + 4) + 8


def _counted(calls: Counter[str], name: str, function: Any) -> Any:
    def call(*args: Any) -> Any:
        calls[name] += 1
        return function(*args)

    return call
