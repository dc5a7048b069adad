"""Bodies that inflate to much more than is stored: batches stay small, and every mode gives the same rows."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.rocketmq.read.columns import MOST_INFLATED
from storage_core.store import Mode, Predicate, Scan, ScanRequest
from tests.reference.rocketmq_model import Message, ModelStore, properties_bytes

COMPRESSED = 1
BODIES = 60
Row = dict[str, Any]


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    r = random.Random(20261130)
    sizes = [r.choice((10, 1000, 1 << 20, 3 << 20)) for _ in range(BODIES)]
    return [bytes([number]) * size for number, size in enumerate(sizes)] + [bytes(MOST_INFLATED + 1), b"last"]


@pytest.fixture(scope="module")
def store(bodies: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One queue; every fifth body is not compressed if it is short, and that of number 7 does not inflate."""
    model = ModelStore(1 << 20, 1000)
    for number, body in enumerate(bodies):
        packed = len(body) > 1000 or number % 5 > 0
        data = zlib.compress(body) if packed else body
        data = data[:-3] + b"???" if number == 7 else data
        properties = properties_bytes([("KEYS", f"k{number}")], True)
        model.put(Message("T", 0, data, properties, 1_700_000_000_000, 1_700_000_000_000, sys_flag=COMPRESSED * packed))
    return model.save(tmp_path_factory.mktemp("inflated") / "store")


def batches(store: Path, **how: Any) -> list[list[Row]]:
    with open_store(str(store)) as opened:
        plan = opened.snapshot().plan(ScanRequest(**how))
        return [batch.to_pylist() for partition in plan for batch in partition.read()]


@pytest.mark.parametrize("scan", [Scan.QUEUES, Scan.LOG])
def test_batches_stay_small_and_have_every_message(store: Path, bodies: list[bytes], scan: Scan) -> None:
    found = batches(store, mode=Mode.PERMISSIVE, scan=scan)
    for rows in found:
        sizes = [len(row["body"] or b"") for row in rows]
        assert sum(size for size in sizes if size > 1000) <= MOST_INFLATED or max(sizes) > MOST_INFLATED
    rows = [row for batch in found for row in batch]
    assert [number for number, row in enumerate(rows) if row["corruption"] is not None] == [7]
    assert [row["body"] for row in rows] == [None if number == 7 else body for number, body in enumerate(bodies)]
    assert len(found) > sum(map(len, bodies)) // MOST_INFLATED // 2


def test_an_empty_body_is_not_inflated(tmp_path: Path) -> None:
    """Neither is it by a client, whose message has no body then, whatever the flag says."""
    model = ModelStore(1 << 20, 1000)
    properties = properties_bytes([("KEYS", "k")], True)
    for kind in (0, 1, 2, 7):
        flags = COMPRESSED | kind << 8
        model.put(Message("T", 0, b"", properties, 1_700_000_000_000, 1_700_000_000_000, sys_flag=flags))
    store = model.save(tmp_path / "store")
    for how in ({}, {"scan": Scan.LOG}, {"keys": ("k",)}):
        assert [row["body"] for batch in batches(store, **how) for row in batch] == [b""] * 4
    with open_store(str(store)) as opened:
        assert [row["body"] for batch in opened.find("k") for row in batch.to_pylist()] == [b""] * 4


def test_modes_and_filters(store: Path, bodies: list[bytes]) -> None:
    kept = [number for number in range(len(bodies)) if number != 7]
    dropped = [row for batch in batches(store, mode=Mode.DROPMALFORMED) for row in batch]
    assert [row["key"] for row in dropped] == [f"k{number}" for number in kept]
    assert [row["body"] for row in dropped] == [bodies[number] for number in kept]
    with pytest.raises(CorruptionError, match="inflate"):
        batches(store, mode=Mode.FAILFAST)
    one = Predicate("body", "=", bodies[30])
    (row,) = [row for batch in batches(store, mode=Mode.DROPMALFORMED, predicates=(one,)) for row in batch]
    assert row["key"] == "k30"
