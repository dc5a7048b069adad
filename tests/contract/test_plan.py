"""Plans: each selected message once, in partitions that can be sent to other processes, read without a trace."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.store import Mode, OffsetBound, ScanPartition, ScanRequest
from tests.contract.engine import Engine, Seen, read
from tests.contract.messages import COUNTS, messages_of
from tests.golden.archive import fingerprint

MANY = 40_000
SELECTIONS: dict[str, dict[str, Any]] = {
    "everything": {},
    "topics": {"topics": ("alpha", "gamma")},
    "a pattern": {"topic_pattern": ".*a.*t.*|g.*"},
    "assigned queues": {"assign": (("beta", 0), ("alpha", 0))},
    "a range": {"start": OffsetBound(offsets={("alpha", 0): 7}), "stop": OffsetBound(offsets={("alpha", 0): 33})},
    "the last of each": {"start": OffsetBound(last=9)},
    "without crc": {"verify_crc": False},
    "permissive": {"mode": Mode.PERMISSIVE},
    "dropping": {"mode": Mode.DROPMALFORMED},
    "as stored": {"decompress": False},
    "without the index": {"use_index": False},
}


@pytest.fixture(scope="session")
def large(every_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many messages in files of the engine's default size."""
    root = tmp_path_factory.mktemp(f"{every_engine.name}-large") / "store"
    with open_store(str(root), every_engine.name) as store:
        store.append(every_engine.table(messages_of({"alpha": MANY * 3 // 4, "beta": MANY // 4})))
    return root


def planned(root: Path, request: ScanRequest) -> list[ScanPartition]:
    with open_store(str(root)) as opened:
        return opened.snapshot().plan(request)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_seven_partitions_hold_what_one_holds_once(
    engine: Engine, store: Path, selection: str, everything: list[Seen]
) -> None:
    fields = SELECTIONS[selection]
    whole = engine.rows(store, min_partitions=1, **fields)
    assert len(set(whole)) == len(whole) > 0
    assert set(whole) <= set(everything)
    for count in (2, 7, 50):
        assert sorted(engine.rows(store, min_partitions=count, **fields)) == sorted(whole), count


@pytest.mark.parametrize(
    ("least", "cores", "size", "count"),
    [
        (1, 1, 5, 5),
        (2, 2, 5, 6),
        (2, 2, 2, 2),
        (2, 2, 1, 2),
        (1, 4, 3, 3),
        (4, 4, 29, 32),
        (4, 4, 33, 33),
        (7, 1, 5, 7),
    ],
)
def test_a_few_partitions_are_a_multiple_of_the_cores(
    engine: Engine, store: Path, least: int, cores: int, size: int, count: int
) -> None:
    request = engine.request(min_partitions=least, cores=cores, max_bytes_per_partition=100)
    assert request.partition_count(size * 100 - 1) == count
    wide = sum(part.estimated_bytes for part in planned(store, engine.request(min_partitions=1)))
    parts = planned(store, replace(request, max_bytes_per_partition=-(-wide // 5)))
    assert len(parts) == replace(request, max_bytes_per_partition=-(-wide // 5)).partition_count(wide)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_there_are_as_many_partitions_as_asked_for(engine: Engine, store: Path, count: int) -> None:
    found = planned(store, engine.request(min_partitions=count))
    assert len(found) >= count
    assert count > 1 or len(found) == 1, "a small store is one piece unless more are asked for"


def test_no_partition_holds_more_messages_than_allowed(engine: Engine, store: Path, everything: list[Seen]) -> None:
    pieces = [
        engine.seen(read([part])) for part in planned(store, engine.request(max_records_per_partition=5))
    ]  # fmt: skip
    assert all(len(rows) <= 5 for rows in pieces)
    assert sorted(row for rows in pieces for row in rows) == everything


def test_smaller_partitions_are_more(engine: Engine, store: Path, everything: list[Seen]) -> None:
    parts = planned(store, engine.request(max_bytes_per_partition=2000))
    assert len(parts) > 5
    assert sorted(engine.seen(read(parts))) == everything


@pytest.mark.parametrize("count", [1, 7])
def test_a_plan_keeps_the_order_of_each_queue(engine: Engine, store: Path, count: int) -> None:
    rows = engine.rows(store, min_partitions=count)
    for queue, expected in COUNTS.items():
        assert [offset for name, offset, _ in rows if name == queue] == list(range(expected))


def test_a_selection_of_nothing_is_a_plan_without_rows(engine: Engine, store: Path) -> None:
    for fields in ({"topic_pattern": "nothing"}, {"start": OffsetBound(last=0)}):
        assert engine.rows(store, **fields) == []


# -- partitions sent to other processes


def test_a_partition_reads_the_same_in_another_process(engine: Engine, store: Path, tmp_path: Path) -> None:
    parts = planned(store, engine.request(min_partitions=3))
    (tmp_path / "parts").write_bytes(pickle.dumps(parts))
    code = (
        "import pickle, sys; parts = pickle.load(open(sys.argv[1], 'rb'));"
        "rows = [batch.to_pylist() for part in parts for batch in part.read()];"
        "pickle.dump(rows, sys.stdout.buffer)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "parts"], capture_output=True, check=True)
    assert pickle.loads(done.stdout) == [batch.to_pylist() for batch in read(parts)]


def test_a_partition_reads_the_same_again(engine: Engine, store: Path) -> None:
    (part,) = planned(store, engine.request())
    assert engine.seen(part.read()) == engine.seen(part.read())
    one, two = part.read(), part.read()
    assert next(one).equals(next(two)), "two may read it at once"


def test_partitions_are_small(engine: Engine, large: Path) -> None:
    """A plan is sent through Spark's driver to each task, so it takes at most a few bytes per message."""
    for count in (1, 7):
        parts = planned(large, engine.request(min_partitions=count))
        size = sum(len(pickle.dumps(part)) for part in parts)
        assert size < 20_000 * len(parts) + 8 * MANY
        assert size < sum(part.estimated_bytes for part in parts) / 40


def test_estimates_are_whole_numbers_for_logging(engine: Engine, large: Path) -> None:
    parts = planned(large, engine.request(min_partitions=7))
    for part in parts:
        numbers = (part.estimated_bytes, part.estimated_rows, part.file_count)
        assert all(type(number) is int and number >= 0 for number in numbers)
    bytes_of_bodies = sum(len(message.body) for message in messages_of({"alpha": MANY * 3 // 4, "beta": MANY // 4}))
    assert bytes_of_bodies < sum(part.estimated_bytes for part in parts) < 3 * bytes_of_bodies


# -- batches


@pytest.mark.parametrize("mode", Mode)
def test_batches_have_the_schema_of_their_request(engine: Engine, store: Path, mode: Mode) -> None:
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        native = snapshot.schema(ScanRequest(mode=mode))
        for columns in (None, ("body",), tuple(reversed(native.names))):
            request = ScanRequest(columns=columns, mode=mode, min_partitions=3)
            schema = snapshot.schema(request)
            assert schema.names == list(columns or native.names)
            batches = read(snapshot.plan(request))
            assert batches
            assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
            for batch in batches:
                batch.validate(full=True)


def test_batches_begin_small_and_stay_bounded(engine: Engine, large: Path) -> None:
    (part,) = planned(large, engine.request())
    sizes = [(batch.num_rows, batch.nbytes) for batch in part.read()]
    assert sum(rows for rows, _ in sizes) == MANY
    assert sizes[0][0] <= 4096, "show() waits for the first one"
    assert all(rows <= 16_384 and size <= 16 << 20 for rows, size in sizes)
    assert len(sizes) <= 2 + MANY // 4096, "neither many small ones"


def test_a_large_store_reads_back_whole(engine: Engine, large: Path) -> None:
    wanted = sorted(message.body for message in messages_of({"alpha": MANY * 3 // 4, "beta": MANY // 4}))
    assert sorted(body for _, _, body in engine.rows(large, min_partitions=7)) == wanted


# -- without a trace


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_reading_leaves_no_descriptor_open(engine: Engine, store: Path) -> None:
    before = descriptors()
    with open_store(str(store)) as opened:
        parts = opened.snapshot().plan(ScanRequest(min_partitions=3))
        assert descriptors() == before
        read(parts)
        assert descriptors() == before


def test_who_stops_reading_leaves_none_open_either(engine: Engine, large: Path) -> None:
    (part,) = planned(large, engine.request())
    before = descriptors()
    batches: Iterator[pa.RecordBatch] = part.read()
    next(batches)
    assert descriptors() > before, "the rule would not notice"
    del batches
    assert descriptors() == before


def test_reading_changes_neither_files_nor_their_times(engine: Engine, own: Path) -> None:
    before = fingerprint(own.parent)
    files = [path for path in own.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, ns=(1_000_000_000, path.stat().st_mtime_ns))
    with open_store(str(own)) as opened:
        for fields in SELECTIONS.values():
            engine.rows(own, **fields)
        for view in engine.views:
            list(opened.view(view))
    assert {path.stat().st_atime_ns for path in files} == {1_000_000_000}
    assert fingerprint(own.parent) == before
