"""Where a store time begins in a queue: the result of 5.3.3's search, even if clocks step back."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core import open_store
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.reference.rocketmq_model import Message, ModelStore
from tests.reference.served import AS_BROKER, read
from tests.reference.time_search import offset_by_time

NAMES = [name for name in archive.names() if name.endswith("5.3.3")]


@pytest.mark.parametrize("name", NAMES)
def test_the_real_store_answered_the_same(name: str, tmp_path: Path) -> None:
    directory = archive.unpack(name, tmp_path)
    rows = read(directory, ScanRequest(columns=("topic", "queueId", "queueOffset"), **AS_BROKER))
    with open_store(str(directory)) as store:
        snapshot = store.snapshot()
        known = {(queue.topic, queue.queue_id) for queue in snapshot.queues()}
        checked = 0
        for query in archive.queries(name):
            key = (query.get("topic"), query.get("queueId"))
            if query.get("boundary") != "LOWER" or key not in known:
                continue
            columns = ("queueOffset",)
            for part in ("start_ms", "stop_ms"):
                request = ScanRequest(columns=columns, assign=(key,), **{part: query["ts"]}, **AS_BROKER)
                got = [row for piece in snapshot.plan(request) for batch in piece.read() for row in batch.to_pylist()]
                mine = [row["queueOffset"] for row in rows if (row["topic"], row["queueId"]) == key]
                expected = [o for o in mine if (o >= query["offset"]) == (part == "start_ms")]
                assert sorted(row["queueOffset"] for row in got) == expected, (query, part)
            checked += 1
    assert checked > 50


def test_many_messages_of_one_time(tmp_path: Path) -> None:
    store = ModelStore(8192, 2000 * 20)
    for number in range(900):
        now = 1_700_000_000_000 + (number >= 100) + (number >= 800)
        store.put(Message("T", 0, b"x", b"", now, now))
    directory = store.save(tmp_path / "store")
    rows = read(directory, ScanRequest(columns=("queueOffset",), start_ms=1_700_000_000_001))
    assert [row["queueOffset"] for row in rows] == list(range(100, 900))


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.sampled_from((0, 0, 1, 2, 7, -3, -20)), min_size=1, max_size=40),
    wanted=st.lists(st.integers(-25, 60), min_size=1, max_size=12),
    per_file=st.sampled_from((1, 3, 5, 50)),
)
def test_clocks_that_step_back(steps: list[int], wanted: list[int], per_file: int) -> None:
    store, now, times = ModelStore(4096, per_file * 20), 1_700_000_000_000, []
    for step in steps:
        now += step
        physical_offset, _ = store.put(Message("T", 0, b"x", b"", now, now))
        times.append((physical_offset, now))
    with TemporaryDirectory() as folder:
        directory = store.save(Path(folder) / "store")
        for delta in wanted:
            at = 1_700_000_000_000 + delta
            files = [times[first : first + per_file] for first in range(0, len(times), per_file)]
            expected = offset_by_time(files, per_file, 0, len(times), 0, at)
            rows = read(directory, ScanRequest(columns=("queueOffset",), start_ms=at))
            assert [row["queueOffset"] for row in rows] == list(range(expected, len(times))), (times, at)
