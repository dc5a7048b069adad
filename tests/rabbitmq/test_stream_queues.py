"""Streams of real nodes: what a restarted node delivered, how offsets and times are found, and what is refused."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core.errors import CorruptionError, OffsetOutOfRangeError, OptionError, UnsupportedFormatError
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.stream_queues import chunk_entries, compression, delivered, log_files
from storage_core.formats.rabbitmq.stream_queues.section_shapes import property_lists, shape_of
from storage_core.rabbitmq import open_store
from storage_core.store import Mode, OffsetBound, Predicate, ScanRequest
from tests.golden.archive import fingerprint
from tests.rabbitmq import amqp10
from tests.rabbitmq import stream_golden as golden


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("name", golden.NAMES)
def test_what_the_restarted_node_delivered(name: str, partitions: int, tmp_path: Path) -> None:
    folder = golden.unpack(name, tmp_path)
    before = fingerprint(tmp_path)
    assert golden.delivered(golden.rows(folder, min_partitions=partitions)) == golden.truth(name)
    assert fingerprint(tmp_path) == before


def test_columns_of_the_log(tmp_path: Path) -> None:
    folder = golden.unpack("s07_sub_batches", tmp_path)
    found = golden.rows(folder)
    assert [row["streamOffset"] for row in found] == [row["sequenceId"] for row in found]
    assert {(row["queueType"], row["epoch"], row["vhost"]) for row in found} == {("stream", 1, "/")}
    assert all(row["chunkId"] <= row["streamOffset"] and row["chunkTimestamp"].year == 2026 for row in found)
    assert all(delivered.delivered(row["rawSections"]).properties == row["rawProperties"] for row in found)
    only = golden.rows(folder, columns=("streamOffset", "raftIndex"))
    assert only == [{"streamOffset": row["streamOffset"], "raftIndex": None} for row in found]


def test_offsets_and_times(tmp_path: Path) -> None:
    folder = golden.unpack("s07_sub_batches", tmp_path)
    found = golden.rows(folder)
    offsets = [row["streamOffset"] for row in found]
    for start in (0, 1, offsets[40], offsets[40] + 1, offsets[-1], offsets[-1] + 1):
        chosen = golden.rows(folder, start=OffsetBound(start), min_partitions=3)
        assert chosen == [row for row in found if row["streamOffset"] >= start]
    for count in (0, 1, 5, 60, 1000):
        last = golden.rows(folder, start=OffsetBound(last=count))
        assert last == found[max(0, len(found) - count) :]
    named = OffsetBound(-2, {("sub", 0): offsets[17]})
    assert golden.rows(folder, start=named, stop=OffsetBound(-1, {("sub", 0): offsets[20]})) == found[17:20]
    times = sorted({row["chunkTimestamp"] for row in found})
    moment = round(times[len(times) // 2].timestamp() * 1000)
    first = next(i for i, row in enumerate(found) if row["chunkTimestamp"] == times[len(times) // 2])
    assert golden.rows(folder, start_ms=moment) == found[first:]
    assert golden.rows(folder, stop_ms=moment) == found[:first]
    assert golden.rows(folder, start_ms=moment + 10**9) == []
    with pytest.raises(OffsetOutOfRangeError, match="is greater than the end of the queue"):
        golden.rows(folder, start=OffsetBound(offsets[-1] + 1000))


def test_seeking_reads_only_what_is_requested(tmp_path: Path) -> None:
    """The last messages are read from the last segment, and only from the chunks that contain them."""
    folder = golden.unpack("s10_torn_segment", tmp_path)
    with open_store(str(folder)) as store:
        plan = store.snapshot().plan(ScanRequest(start=OffsetBound(last=1)))
        (partition,) = plan
        assert partition.estimated_rows == 1
        assert [each.rsplit("/", 1)[1] for each in partition.files()] == ["00000000000000000199.segment"]


def test_pieces_of_a_plan(tmp_path: Path) -> None:
    folder = golden.unpack("s02_kill_publishing", tmp_path)
    found = golden.rows(folder)
    with open_store(str(folder)) as store:
        snapshot = store.snapshot()
        for most in (1, 7, 1000):
            some = ScanRequest(start=OffsetBound(2500 if most == 1 else 0), max_records_per_partition=most)
            plan = snapshot.plan(some)
            parts = [[row for batch in each.read() for row in batch.to_pylist()] for each in plan]
            assert max(map(len, parts)) <= most
            assert [len(part) for part in parts] == [each.estimated_rows for each in plan]
            assert [row for part in parts for row in part] == found[2500 if most == 1 else 0 :]
        for partition in snapshot.plan(ScanRequest(min_partitions=4)):
            assert list(pickle.loads(pickle.dumps(partition)).read()) == list(partition.read())
    late = found[100]["chunkTimestamp"]
    predicates = (Predicate("streamOffset", ">=", 5), Predicate("body", "!=", b"m7"))
    assert golden.rows(folder, predicates=predicates) == [row for row in found[5:] if row["body"] != b"m7"]
    micros = round(late.timestamp() * 1000) * 1000
    timed = golden.rows(folder, predicates=(Predicate("chunkTimestamp", ">", micros),))
    assert timed == [row for row in found if row["chunkTimestamp"] > late]
    assert golden.rows(folder, predicates=(Predicate("vhost", "=", "none"),)) == []


def _segment(folder: Path, number: int = -1) -> Path:
    return sorted(folder.glob("*/*.segment"))[number]


def _index(folder: Path, number: int = -1) -> Path:
    return sorted(folder.glob("*/*.index"))[number]


def _records(index: Path) -> Any:
    return log_files.INDEX_RECORD.all(np.frombuffer(index.read_bytes(), np.uint8)[log_files.HEAD_SIZE :])


def _last_chunk(folder: Path) -> int:
    """Position of the last chunk in its segment."""
    return int(_records(_index(folder))["position"][-1])


def _change(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(data)


def test_torn_tails(tmp_path: Path) -> None:
    """As on real nodes, a chunk is lost with its index record, and also if its data are cut."""
    folder = golden.unpack("s02_kill_publishing", tmp_path)
    whole = golden.rows(folder)
    index, segment = _index(folder), _segment(folder)
    chunk = whole[-1]["chunkId"]
    data = segment.read_bytes()
    segment.write_bytes(data[: _last_chunk(folder) + 60])
    assert golden.rows(folder) == [row for row in whole if row["chunkId"] < chunk]
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        (warning,) = snapshot.warnings()
    assert (finding.position, finding.reason) == (
        _last_chunk(folder), "the last chunk that the index lists is cut; a node's start cuts it",
    )  # fmt: skip
    assert warning.endswith(finding.reason)
    length = _last_chunk(folder) + 36
    segment.write_bytes(data[:length] + b"\xff\xff\xff\xff" + data[length + 4 :])  # and 4 GB are not requested
    assert golden.rows(folder) == [row for row in whole if row["chunkId"] < chunk]
    segment.write_bytes(data + b"rubbish")
    assert golden.rows(folder) == whole
    segment.write_bytes(data)
    records = index.read_bytes()
    index.write_bytes(records[:-29] + bytes(29))
    assert golden.rows(folder) == [row for row in whole if row["chunkId"] < chunk]
    index.write_bytes(records[:-13])
    short = [row for row in whole if row["chunkId"] < chunk]
    assert golden.rows(folder) == short
    index.write_bytes(records[:8])
    assert golden.rows(folder) == []


def test_a_chunk_damaged_in_the_middle(tmp_path: Path) -> None:
    folder = golden.unpack("s02_kill_publishing", tmp_path)
    whole = golden.rows(folder)
    records = _records(_index(folder))
    record = records[int(np.argmax(np.diff(records["id"].astype(np.int64))))]
    position, chunk = int(record["position"]), int(record["id"])
    _change(_segment(folder), position + 70)
    file = f"{folder}/{_segment(folder).relative_to(folder)}"
    with pytest.raises(CorruptionError) as caught:
        golden.rows(folder)
    assert str(caught.value) == (
        f"CorruptionError: {file} at {position}: streamOffset {chunk} of queue flood: the checksum of a chunk does not "
        "fit; option mode=DROPMALFORMED leaves such messages out"
    )
    others = [row for row in whole if row["chunkId"] != chunk]
    assert golden.rows(folder, mode=Mode.DROPMALFORMED) == others
    shown = golden.rows(folder, mode=Mode.PERMISSIVE)
    for start in (0, chunk + 1):  # a chunk that several pieces share is reported by one
        pieces = golden.rows(
            folder,
            mode=Mode.PERMISSIVE,
            max_records_per_partition=1,
            start=OffsetBound(start),
            stop=OffsetBound(chunk + 9),
        )
        assert [row["streamOffset"] for row in pieces if row["corruption"]] == [chunk]
    (damaged,) = [row for row in shown if row["corruption"]]
    assert (damaged["streamOffset"], damaged["position"], damaged["body"]) == (chunk, position, None)
    assert [row["streamOffset"] for row in shown if not row["corruption"]] == [row["streamOffset"] for row in others]
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
        listed = [row for batch in store.view("damage") for row in batch.to_pylist()]
    assert (finding.position, finding.kind, finding.queue) == (position, "chunk", "flood")
    assert [row["position"] for row in listed] == [position]
    assert len(golden.rows(folder, verify_crc=False, mode=Mode.DROPMALFORMED)) >= len(others)


def test_lost_files(tmp_path: Path) -> None:
    folder = golden.unpack("s10_torn_segment", tmp_path)
    whole = golden.rows(folder)
    last = _segment(folder).read_bytes()
    _segment(folder).write_bytes(b"")
    with open_store(str(folder)) as store:
        assert any("is too short for a chunk" in finding.reason for finding in store.verify())
    _segment(folder).write_bytes(last)
    _index(folder, 0).unlink()
    assert golden.rows(folder) == [row for row in whole if row["streamOffset"] >= 60]
    with open_store(str(folder)) as store:
        reasons = [finding.reason for finding in store.verify()]
    assert any("the segment has no index" in reason for reason in reasons)
    _segment(folder, 1).unlink()
    with pytest.raises(CorruptionError, match="the segment of an index is missing"):
        golden.rows(folder)
    left = golden.rows(folder, mode=Mode.DROPMALFORMED)
    assert left == [row for row in whole if row["streamOffset"] >= 131]


def test_names_without_the_nodes_tables(tmp_path: Path) -> None:
    folder = golden.unpack("s01_clean", tmp_path)
    for table in tmp_path.glob("*.*"):
        table.unlink()
    found = golden.rows(folder)
    assert {(row["vhost"], row["queue"]) for row in found} == {(None, "__ev__nts_1")}
    with open_store(str(folder)) as store:
        assert "its virtual host is not known" in store.snapshot().warnings()[0]


def test_views(tmp_path: Path) -> None:
    folder = golden.unpack("s06_protocol_messages", tmp_path)
    with open_store(str(folder)) as store:
        views = {
            name: [row for batch in store.view(name) for row in batch.to_pylist()]
            for name in ("queues", "segments", "offsets", "damage")
        }
        with pytest.raises(OptionError, match="The views of streams are messages, queues, segments, offsets, damage"):
            store.view_schema("raft")
    (queue,) = views["queues"]
    assert (queue["queue"], queue["type"], queue["messages"], queue["maxOffset"]) == ("proto", "stream", 8, 10)
    assert [row["messages"] for row in views["segments"]] == [8]
    stored = {(row["kind"], row["reference"]): row["offset"] or row["sequence"] for row in views["offsets"]}
    assert stored == {("consumer", "consumer-a"): 3, ("consumer", "consumer-b"): 6, ("publisher", "pub-one"): 31}
    assert views["damage"] == []


def test_what_is_refused(tmp_path: Path) -> None:
    folder = golden.unpack("s01_clean", tmp_path)
    with open_store(str(folder)) as store:
        with pytest.raises(UnsupportedFormatError, match="streams are not written; write classic queues"):
            store.begin_job()
        with pytest.raises(OptionError, match="there is no such queue"):
            store.snapshot().plan(ScanRequest(topics=("event",)))
        with pytest.raises(OptionError, match="RabbitMQ stores have no key index"):
            store.snapshot().plan(ScanRequest(keys=("a",)))
    version = bytearray(_index(folder).read_bytes())
    version[7] = 2
    _index(folder).write_bytes(version)
    _change(_segment(folder), 8)
    with pytest.raises(CorruptionError, match=r"\.index at 4: .*version 2; version 1 is read"):
        golden.rows(folder)
    version[7] = 1
    _index(folder).write_bytes(version)
    _change(_segment(folder), 7)
    with pytest.raises(CorruptionError, match=r"\.segment at 4: .*version 254; version 1 is read"):
        golden.rows(folder)


@pytest.mark.parametrize("of_3_13", [False, True])
def test_shapes_against_the_decoder(of_3_13: bool) -> None:
    """A message that matches a shape is read as by the single-message decoder, whichever message made the shape."""
    draw = random.Random(16)
    taken = 0
    for _ in range(250):
        kind = amqp10.random_kind(draw)
        messages = [amqp10.random_message(draw, kind) for _ in range(12)]
        buffer = np.frombuffer(b"".join(messages), np.uint8)
        stops = np.cumsum([len(each) for each in messages])
        starts = stops - [len(each) for each in messages]
        shape = shape_of(messages[0], of_3_13)
        if shape is None:
            continue
        found = shape.matches(buffer, starts, stops)
        assert found.ok[0]
        rows = np.flatnonzero(found.ok)
        taken += len(rows)
        again = shape.matches(buffer, starts[rows], stops[rows])
        lists = property_lists(shape, again, buffer).to_pylist()
        for index, row in enumerate(rows.tolist()):
            one = delivered.delivered(messages[row], of_3_13)
            assert lists[index] == one.properties
            (body,) = one.body
            for value, span in (
                (shape.body, body), (shape.exchange, one.exchange), (shape.routing_key, one.routing_key),
            ):  # fmt: skip
                assert (value is None) == (span is None)
                if value is not None and span is not None:
                    begin, end = (int(each[index] - starts[row]) for each in shape.span(value, again))
                    assert (begin, end) == span
    assert taken > (50 if of_3_13 else 300)


@pytest.mark.parametrize("regions", [1, 5, 90])
def test_entries_of_chunks(regions: int) -> None:
    """Entries found in steps, in runs and from head to head equal those that were written."""
    draw = random.Random(regions)
    written, parts, counts = [], [], []
    for region in range(regions):
        sizes = [draw.choice((0, 3, 3, 200)) for _ in range(draw.randrange(1, 40))] + [7] * draw.choice((0, 300))
        bodies = [draw.randbytes(size) for size in sizes]
        written += [(region, number, body) for number, body in enumerate(bodies)]
        parts.append(b"".join(len(body).to_bytes(4, "big") + body for body in bodies))
        counts.append(len(bodies))
    buffer = np.frombuffer(b"".join(parts), np.uint8)
    stops = np.cumsum([len(part) for part in parts])
    starts = stops - [len(part) for part in parts]
    number = np.array(counts, np.int64)
    found = chunk_entries.locate(buffer, starts, stops, number, number)
    assert not found.reasons
    bodies = [found.buffer[a:b].tobytes() for a, b in zip(found.starts, found.stops, strict=True)]
    assert list(zip(found.chunks.tolist(), found.numbers.tolist(), bodies, strict=True)) == written
    longer = chunk_entries.locate(buffer, starts, stops, number + 1, number + 1)
    assert set(longer.reasons) == set(range(regions))
    assert not len(longer.starts)


@pytest.mark.parametrize("kind", sorted(amqp10.COMPRESSIONS))
def test_sub_batches(kind: int) -> None:
    bodies = [b"one", b"", b"three" * 100]
    plain = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    batch = amqp10.sub_batch(kind, len(bodies), plain)
    data = b"\0\0\0\2ab" + batch + b"\0\0\0\1c"
    buffer = np.frombuffer(data, np.uint8)
    ends = np.array([len(data)])
    found = chunk_entries.locate(buffer, np.zeros(1, np.int64), ends, np.array([3]), np.array([5]))
    assert not found.reasons
    unpacked = [found.buffer[a:b].tobytes() for a, b in zip(found.starts, found.stops, strict=True)]
    assert unpacked == [b"ab", *bodies, b"c"]
    assert found.numbers.tolist() == [0, 1, 2, 3, 4]
    other = chunk_entries.locate(buffer, np.zeros(1, np.int64), ends, np.array([3]), np.array([6]))
    assert "another number of records" in other.reasons[0]
    if kind:
        broken = np.frombuffer(data[:20] + b"\xff\xff\xff" + data[23:], np.uint8)
        assert chunk_entries.locate(broken, np.zeros(1, np.int64), ends, np.array([3]), np.array([5])).reasons


def test_sub_batches_are_unpacked_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = golden.unpack("s07_sub_batches", tmp_path)
    whole, chunks = golden.rows(folder), list[int]()
    locate = chunk_entries.locate

    def noted(buffer: Bytes, starts: Positions, *rest: Any) -> chunk_entries.Records:
        found = locate(buffer, starts, *rest)
        chunks.append(len(starts))
        return found

    monkeypatch.setattr(chunk_entries, "locate", noted)
    assert golden.rows(folder) == whole
    at_once = max(chunks)
    monkeypatch.setattr(chunk_entries, "MOST_UNPACKED", 1000)
    chunks.clear()
    assert golden.rows(folder) == whole
    assert max(chunks) < at_once


def test_a_chunk_that_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by chunk, also with sub-batches of one message."""
    plain = (27).to_bytes(4, "big") + b"one" * 9
    data = amqp10.sub_batch(1, 1, plain) * 3
    buffer = np.frombuffer(data * 2, np.uint8)
    starts, ends = np.array([0, len(data)]), np.array([len(data), 2 * len(data)])
    counts = np.array([3, 3])
    assert not chunk_entries.locate(buffer, starts, ends, counts, counts).reasons
    monkeypatch.setattr(compression, "MOST_BYTES", 3 * len(plain))
    assert not chunk_entries.locate(buffer, starts, ends, counts, counts).reasons
    monkeypatch.setattr(compression, "MOST_BYTES", 3 * len(plain) - 1)
    assert set(chunk_entries.locate(buffer, starts, ends, counts, counts).reasons) == {0, 1}
    monkeypatch.setattr(chunk_entries, "MOST_UNPACKED", 6 * len(plain) - 1)
    with pytest.raises(chunk_entries.TooMuchToUnpackError) as caught:
        chunk_entries.locate(buffer, starts, ends, counts, counts)
    assert caught.value.sizes.tolist() == [3 * len(plain)] * 2
