"""A `.config` with another number of entries per segment, even with more than the 14 bits of a segment can address.

Source of the rule: rabbitmq.md 1.3. `tests/real/rabbitmq/test_repair.py` runs a real node on the same stores.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.errors import CorruptionError, UnsupportedFormatError
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import open_store
from storage_core.store import Store
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden
from tests.support.rabbitmq_counts import CASES, expected, make
from tests.support.rabbitmq_harm import LARGE, SMALL, index_file

MOST_MEMORY = 16 << 20


def rows(store: Path) -> dict[str, list[tuple[bytes, bool]]]:
    found = golden.table(store, columns=("queue", "body", "redelivered")).to_pylist()
    return {queue: [(r["body"], r["redelivered"]) for r in found if r["queue"] == queue] for queue in (SMALL, LARGE)}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_a_node(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    store = make(tmp_path / "store", "v", case)
    tracemalloc.start()
    assert rows(store) == expected(case)
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    tracemalloc.stop()
    with open_store(str(store)) as opened:
        findings = [(finding.queue, finding.kind.value, finding.reason) for finding in opened.verify()]
    crashes = case.clean and case.redelivered > case.delivered
    assert [queue for queue, _, _ in findings] == ([LARGE, SMALL] if crashes else [])
    for _, kind, reason in findings:
        assert kind == "index against message store"
        assert reason.endswith("recovery.dets says that the next one gets 40: is .config the one of this store?")


def test_a_store_of_more_entries_than_a_segment_can_hold_is_not_written(tmp_path: Path) -> None:
    store = make(tmp_path / "store", "v", CASES["one segment"])
    before = fingerprint(store / "queues")
    with open_store(str(store)) as opened:
        for write in (lambda: opened.append(pa.table({"queue": [SMALL], "body": [b"x"]})), lambda: opened.queue(SMALL)):
            with pytest.raises(
                UnsupportedFormatError, match=r"\.config: segment_entry_count 20000 is more than the 16384"
            ):
                write()
    assert fingerprint(store / "queues") == before


@pytest.mark.parametrize("count", [0, -1, 10_000_001, 1 << 70])
def test_a_count_that_no_node_was_tried_with(count: int, tmp_path: Path) -> None:
    store = make(tmp_path / "store", "v", CASES["one segment"])
    (store / paths.CONFIG_FILE).write_bytes(paths.encode_config(count))
    with pytest.raises(CorruptionError, match=rf"segment_entry_count {count} is not 1 to 10000000"):
        open_store(str(store))


def test_a_segment_whose_sequence_ids_are_too_large(tmp_path: Path) -> None:
    store = make(tmp_path / "store", "v", CASES["three segments"])
    last = index_file(store, SMALL, "2.idx")
    last.rename(last.with_name(f"{'9' * 18}.idx"))
    with pytest.raises(CorruptionError, match=f"{'9' * 18}.idx at 0: .*more than the 62 bits"):
        rows(store)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.config in (17, 20)])
def test_a_queue_whose_count_is_not_there_is_no_endless_loop(name: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store", "v", CASES[name])
    with open_store(str(store)) as opened:
        with pytest.raises(CorruptionError, match=r"recovery.dets counts \d+ more messages .*repair"):
            drained(opened)
        opened.repair()
        assert list(opened.verify()) == []
        assert drained(opened) == [data for data, _ in expected(CASES[name])[SMALL]]


def drained(store: Store) -> list[bytes]:
    """The bodies that the live queue delivers."""
    with store.queue(SMALL) as queue:
        return [message.body for message in queue]
