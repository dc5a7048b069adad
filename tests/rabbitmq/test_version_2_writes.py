"""Rows written to queues of version 2, in new stores and in those of real nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.errors import MqStoreError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.formats.rabbitmq.classic.queue_v2 import SEGMENT_ENTRY_COUNT
from storage_core.formats.rabbitmq.erlang import disk_log
from storage_core.formats.rabbitmq.erlang.external_term import decode
from storage_core.rabbitmq import open_store
from tests.rabbitmq import golden
from tests.rabbitmq.writing import VERSION_2, append_as_version_2, check, rows, small
from tests.support.rabbitmq_damage import edit


def suffixes(store: str) -> set[str]:
    return {path.suffix for path in Path(store).glob("queues/*/*") if path.suffix}


def test_rows_come_back(tmp_path: Path) -> None:
    """Small bodies from a segment's own store, large ones from the shared one, over several segments and jobs."""
    store = small(tmp_path, msg_store_file_size_limit=1_000_000)
    first, second = rows(30, 1), rows(3 * SEGMENT_ENTRY_COUNT + 3000, 2)
    append_as_version_2(store, first)
    job = store.begin_job(second.schema.names)
    third = len(second) // 3
    cuts = [second.slice(0, third), second.slice(third, third), second.slice(2 * third)]
    assert job.commit([job.stage(iter(cut.to_batches()), n) for n, cut in enumerate(cuts)]) == len(second)
    check(store, pa.concat_tables([first, second]))
    assert suffixes(store.path) == {".qi", ".qs"}
    assert store.snapshot().locations.clean
    assert list(store.verify()) == []
    queues = pa.Table.from_batches(store.view("queues"))
    assert set(queues["version"].to_pylist()) == {2}
    stubs = [paths.parse_stub(path.read_bytes()) for path in Path(store.path).glob("queues/*/.queue_name")]
    assert {stub.version for stub in stubs} == {2}


def test_a_queue_whose_messages_are_all_large_has_no_store_of_its_own(tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(pa.table({"body": [bytes(5000)] * 3}), queue="a", queueArguments=VERSION_2)
    assert suffixes(store.path) == {".qi"}
    assert golden.table(Path(store.path))["body"].to_pylist() == [bytes(5000)] * 3


def test_a_new_queue_is_like_the_others(tmp_path: Path) -> None:
    """It has version 2 if all others do; in a priority queue, if the queues of its other priorities do."""
    store = small(tmp_path)
    arguments = {**VERSION_2, "x-max-priority": 2}
    store.append(pa.table({"body": [b"low"]}), queue="p", queueArguments=arguments)
    store.append(pa.table({"body": [b"x"]}), queue="like")
    assert suffixes(store.path) == {".qi", ".qs"}
    store.append(pa.table({"body": [b"x"]}), queue="first", queueArguments={"x-queue-version": 1})
    assert suffixes(store.path) == {".qi", ".qs", ".idx"}
    store.append(pa.table({"body": [b"x"]}), queue="another")
    store.append(pa.table({"body": [b"top"], "priority": [2]}), queue="p")
    kinds = {queue["queue"]: queue["version"] for queue in pa.Table.from_batches(store.view("queues")).to_pylist()}
    assert kinds == {"p": 2, "like": 2, "first": 1, "another": 1}
    found = golden.table(Path(store.path), topics=("p",))
    assert found["body"].to_pylist() == [b"top", b"low"]


@pytest.mark.parametrize(
    ("snapshot", "queue"),
    [("s11_cqv2_clean", "v2.q"), ("v4_compacted_clean", "plain"), ("v4_compacted_kill9", "plain"),
     ("v4_protocols_clean", "new"), ("v43_compacted_clean", "plain")],
)  # fmt: skip
def test_appending_to_a_store_of_a_real_node(snapshot: str, queue: str, tmp_path: Path) -> None:
    path = golden.unpack(snapshot, tmp_path) / golden.DEFAULT_VHOST
    before = golden.table(path, columns=("queue", "body", "redelivered"))
    with open_store(str(path)) as store:
        clean, wrong = store.snapshot().locations.clean, len(list(store.verify()))
        added = rows(50).set_column(0, "queue", [[queue] * 50])
        store.append(added)
        assert store.snapshot().locations.clean is clean
        assert len(list(store.verify())) == wrong
        assert suffixes(store.path) == {".qi", ".qs"}
    after = golden.table(path, columns=("queue", "body", "redelivered"))
    assert len(after) == len(before) + 50
    mine = after.filter(pc.equal(after["queue"], queue)).to_pylist()
    old = before.filter(pc.equal(before["queue"], queue)).to_pylist()
    assert [row["body"] for row in mine] == [row["body"] for row in old] + added["body"].to_pylist()
    assert [row["redelivered"] for row in mine[len(old) :]] == [not clean] * 50
    rest = pc.not_equal(before["queue"], queue)
    assert after.filter(pc.not_equal(after["queue"], queue)).equals(before.filter(rest))


@pytest.mark.parametrize("snapshot", ["s11_cqv2_clean", "v4_compacted_clean", "v43_compacted_clean"])
def test_the_clean_stop_is_noted_as_its_node_does(snapshot: str, tmp_path: Path) -> None:
    """The keys of clean.dot, and the forms of the rows of both tables."""

    def noted(store: Path) -> tuple[list[bytes], set[tuple[str, ...]]]:
        folder = store / "msg_store_persistent"
        keys = [
            line.partition(b",")[0] for line in (folder / "clean.dot").read_bytes().splitlines() if line[:1] == b"{"
        ]
        forms = set()
        for name in ("file_summary.ets", "msg_store_index.ets"):
            data = (folder / name).read_bytes()
            starts, stops, _ = disk_log.items(data)
            for start, stop in zip(starts[1:-1].tolist(), stops[1:-1].tolist(), strict=True):
                row = decode(data[start:stop])
                forms.add((row[0], *(value if isinstance(value, str) else type(value).__name__ for value in row[1:])))
        return keys, forms

    path = golden.unpack(snapshot, tmp_path) / golden.DEFAULT_VHOST
    before = noted(path)
    with open_store(str(path)) as store:
        assert store.snapshot().locations.clean
        store.append(pa.table({"body": [b"x" * 5000]}), queue="q")
    keys, forms = noted(path)
    assert keys == before[0]
    linked = {("file_summary", "int", "int", "undefined", "int", "int", "false", "int"),
              ("file_summary", "int", "int", "int", "undefined", "int", "false", "int")}  # fmt: skip
    assert forms - before[1] == (linked if snapshot == "s11_cqv2_clean" else set())


def test_a_queue_that_became_one_of_another_version_meanwhile(tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(pa.table({"body": [b"kept"]}), queue="a")
    job = store.begin_job(queue="a")
    part = job.stage(iter(pa.table({"body": [b"x"]}).to_batches()))
    shutil.rmtree(store.path + "/queues")
    for name in ("recovery.dets", "definitions.json"):
        (Path(store.path) / name).unlink(missing_ok=True)
    store.append(pa.table({"body": [b"y"]}), queue="a", queueArguments=VERSION_2)
    with pytest.raises(MqStoreError, match="has become a queue of version 2 meanwhile; nothing was written: run this"):
        job.commit([part])
    assert golden.table(Path(store.path))["body"].to_pylist() == [b"y"]


@pytest.mark.parametrize("given", [{}, {"classic_queue_index_v2_segment_entry_count": "64"}])
def test_segments_of_another_size(given: dict[str, str], tmp_path: Path) -> None:
    """A node has one size for all segments: what a later write appends has the size of those that are there."""
    first = small(tmp_path, classic_queue_index_v2_segment_entry_count=50)
    table = rows(400)
    append_as_version_2(first, table)
    with open_store(first.path, given) as store:
        store.append(table)
        assert list(store.verify()) == []
        check(store, pa.concat_tables([table, table]))
    indexes = [*Path(first.path).glob("queues/*/*.qi")]
    assert len(indexes) > 400 // 50 * 2
    for path in indexes:
        data, number = path.read_bytes(), int(path.stem)
        assert queue_v2.decode_header(np.frombuffer(data, np.uint8), queue_v2.INDEX_MAGIC, number) == (
            number * 50, number * 50 + 50,
        )  # fmt: skip
        assert len(data) <= queue_v2.position_of(50)


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_id_after_segments_of_another_size(clean: bool, tmp_path: Path) -> None:
    store = small(tmp_path, classic_queue_index_v2_segment_entry_count=50)
    store.append(pa.table({"body": ["x"] * 120}), queue="q", queueArguments=VERSION_2)
    if not clean:
        (Path(store.path) / "recovery.dets").unlink()
    (queue,) = store.queues()
    assert (queue.start, queue.stop) == (0, 120 if clean else 150)
    store.append(pa.table({"body": ["y"]}), queue="q")
    assert golden.table(Path(store.path))["sequenceId"].to_pylist() == [*range(120), 150]


@pytest.mark.parametrize(("count", "size"), [(120, 50), (30, 10_000)])
def test_a_header_with_a_damaged_range(count: int, size: int, tmp_path: Path) -> None:
    """A node takes the size of a segment from its setting; the other headers of the queue show it."""
    store = small(tmp_path, classic_queue_index_v2_segment_entry_count=size)
    store.append(pa.table({"body": [f"{number}" for number in range(count)]}), queue="q", queueArguments=VERSION_2)
    path = Path(store.path)
    before = golden.table(path)
    (last,) = path.glob(f"queues/*/{(count - 1) // size}.qi")
    edit(last, lambda data: data.__setitem__(12, data[12] ^ 1))
    assert golden.table(path).equals(before)
    (path / "recovery.dets").unlink()
    assert golden.table(path)["sequenceId"].equals(before["sequenceId"])
    (queue,) = store.queues()
    assert queue.stop == -(-count // size) * size
