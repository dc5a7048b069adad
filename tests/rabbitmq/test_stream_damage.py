"""Flipped bits and lost files in streams: a node reads from chunk to chunk, so a wrong index loses no message.

tests/real/rabbitmq/test_flipped_streams.py does the same to a real node. Source: docs/format/rabbitmq-streams.md 7, 8.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core.errors import CorruptionError
from storage_core.formats.rabbitmq.stream_queues import log_files
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK, HEAD_SIZE, INDEX_RECORD
from storage_core.rabbitmq import open_store
from storage_core.store import Mode, OffsetBound, ScanRequest
from tests.rabbitmq import stream_golden as golden
from tests.reference import osiris_reader
from tests.support.rabbitmq_damage import edit

NAME = "s10_torn_segment"
SEED = 27
FLIPS = int(os.environ.get("MQSTORE_FLIPS", "150"))
Rows = list[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream of four segments."""
    return golden.unpack(NAME, tmp_path)


def flip(path: Path, bit: int) -> None:
    edit(path, lambda data: data.__setitem__(bit // 8, data[bit // 8] ^ 1 << bit % 8))


def indexes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.index"))


def records(index: Path) -> Any:
    return INDEX_RECORD.all(np.frombuffer(index.read_bytes(), np.uint8)[HEAD_SIZE:])


def reported(folder: Path) -> dict[tuple[str, int], str]:
    """Effects by file and position."""
    with open_store(str(folder)) as store:
        return {(finding.file.rsplit("/", 1)[1], finding.position): finding.effect for finding in store.verify()}


def test_a_stream_without_a_log_is_empty_and_named(folder: Path) -> None:
    """A node of 3.10.8 was started on one: it delivered nothing, and the next message got offset 0."""
    (directory,) = (path for path in folder.iterdir() if path.is_dir())
    queue = golden.rows(folder)[0]["queue"]
    for path in directory.iterdir():
        path.unlink()
    assert golden.rows(folder, topics=(queue,)) == []
    with open_store(str(folder)) as store:
        (row,) = [row for batch in store.view("queues") for row in batch.to_pylist()]
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        (finding,) = store.verify()
    assert (row["queue"], row["messages"], row["maxOffset"]) == (queue, 0, 0)
    reason = "no segment of this stream is left; a node's start begins it anew, without messages"
    assert (finding.queue, finding.file, finding.reason) == (queue, directory.name, reason)
    assert snapshot.warnings() == (f"{folder}/{directory.name} at 0: {reason}",)


def test_a_stream_without_a_directory_is_empty_and_named(folder: Path) -> None:
    """As without a log: a node of 3.10.8 was started on both."""
    (directory,) = (path for path in folder.iterdir() if path.is_dir())
    queue = golden.rows(folder)[0]["queue"]
    (folder / "__other_1795317093821433609").mkdir()
    shutil.rmtree(directory)
    with open_store(str(folder)) as store:
        assert [(info.topic, info.start, info.stop) for info in store.queues()] == [(queue, 0, 0)]
        assert [finding.file for finding in store.verify()] == [directory.name]


def test_a_flipped_bit_of_an_index_costs_no_message(folder: Path) -> None:
    """Except in the last record, by which a start finds the end of the stream."""
    whole, draw = golden.rows(folder), random.Random(SEED)
    clean = reported(folder)
    for index in indexes(folder):
        last = len(records(index)) - 1
        ends = HEAD_SIZE + (last if index == indexes(folder)[-1] else last + 1) * INDEX_RECORD.size
        for bit in draw.sample(range(8 * ends), 5):
            flip(index, bit)
            field = (bit // 8 - HEAD_SIZE) % INDEX_RECORD.size if bit >= 8 * HEAD_SIZE else -1
            start = draw.choice(whole[:-20])["streamOffset"]
            read = [
                golden.rows(folder, min_partitions=draw.choice((1, 3, 9))),
                golden.rows(folder, max_records_per_partition=draw.choice((1, 7))),
                golden.rows(folder, start=OffsetBound(start), stop=OffsetBound(start + 9), min_partitions=2),
                golden.rows(folder, start=OffsetBound(last=9)),
            ]
            if 8 <= field < 16:  # the time of a chunk is taken from the index
                for row in (row for rows in read for row in rows):
                    row["chunkTimestamp"] = next(
                        each["chunkTimestamp"] for each in whole if each["chunkId"] == row["chunkId"]
                    )
            if 16 <= field < 24:
                for row in (row for rows in read for row in rows):
                    row["epoch"] = whole[0]["epoch"]
            some = [row for row in whole if start <= row["streamOffset"] < start + 9]
            assert read == [whole, whole, some, whole[-9:]], f"{index.name} bit {bit}"
            if field < 8 or field >= 24:
                new = {effect for place, effect in reported(folder).items() if place not in clean}
                assert new == {"serves all, but not to a consumer that begins there" if field >= 0 else "serves all"}
            flip(index, bit)


def test_records_in_another_order(folder: Path) -> None:
    whole, index = golden.rows(folder), indexes(folder)[0]

    def swap(data: bytearray) -> None:
        data[37:66], data[66:95] = data[66:95], data[37:66]

    edit(index, swap)
    assert golden.rows(folder) == whole
    with open_store(str(folder)) as store:
        snapshot = store.snapshot()
        snapshot.queues()
        assert any("does not follow the one before" in warning for warning in snapshot.warnings())
    index.write_bytes(b"JUNK" * 20)
    assert golden.rows(folder) == whole


def test_a_flipped_bit_of_a_chunks_head(folder: Path) -> None:
    """A change in a field that a node ignores is no damage; in any other field it loses that chunk only."""
    whole, segment = golden.rows(folder), indexes(folder)[0].with_suffix(".segment")
    record = records(indexes(folder)[0])[3]
    chunk, position = int(record["id"]), int(record["position"])
    others = [row for row in whole if row["chunkId"] != chunk]
    ignored = {"entries", "records", "time", "epoch", "trailer_size", "filter_size", "reserved"}
    draw = random.Random(SEED)
    for bit in draw.sample(range(8 * CHUNK.size), 60):
        flip(segment, 8 * position + bit)
        field = next(name for name, (kind, at) in CHUNK.dtype.fields.items() if at <= bit // 8 < at + kind.itemsize)
        effects = {effect for (file, at), effect in reported(folder).items() if (file, at) == (segment.name, position)}
        if field in ignored:
            assert golden.rows(folder) == whole, f"{field} bit {bit}"
            ends = {"serves the chunk; a consumer does not get beyond it"}
            assert effects == (ends if field in {"records", "trailer_size"} else set())
        else:
            with pytest.raises(CorruptionError, match=f"{segment.name} at {position}: streamOffset {chunk} of"):
                golden.rows(folder)
            assert golden.rows(folder, mode=Mode.DROPMALFORMED) == others, f"{field} bit {bit}"
            hidden = "silently serves none of its messages"
            assert effects == {hidden if field == "type" else "fails a consumer that comes to it"}
        flip(segment, 8 * position + bit)


def test_what_a_start_fails_at(folder: Path) -> None:
    """A start reads the tracking data of the last segment and the data of the last chunk."""
    whole, index = golden.rows(folder), indexes(folder)[-1]
    segment, record = index.with_suffix(".segment"), records(index)[-1]
    position = int(record["position"])
    head = CHUNK.all(np.frombuffer(segment.read_bytes()[position : position + CHUNK.size], np.uint8))[0]
    refused = "does not start the stream"
    trailer = position + CHUNK.size + int(head["data_size"])
    flip(segment, 8 * trailer + 6)
    assert golden.rows(folder) == whole
    assert reported(folder)[segment.name, position] == refused
    flip(segment, 8 * trailer + 6)
    whole_segment = segment.read_bytes()
    edit(segment, lambda data: data.__delitem__(slice(position + CHUNK.size, None)))
    assert golden.rows(folder) == [row for row in whole if row["chunkId"] != int(record["id"])]
    assert reported(folder)[segment.name, position] == refused
    segment.write_bytes(whole_segment)
    assert refused not in reported(folder).values()
    first = indexes(folder)[0].with_suffix(".segment")
    edit(first, lambda data: data.__setitem__(HEAD_SIZE, log_files.FIRST_BYTE ^ 1))
    assert reported(folder)[first.name, HEAD_SIZE] == refused


@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_bits_against_a_nodes_rules(seed: int, folder: Path) -> None:
    """Everything that a consumer gets is read, and `verify` reports where it gets no further, or nothing at all."""
    whole, draw, clean = golden.rows(folder), random.Random(seed), reported(folder)
    bodies = {row["streamOffset"]: row["rawSections"] for row in whole}
    (stream,) = {path.parent for path in indexes(folder)}
    files = sorted(path for path in stream.iterdir() if path.stat().st_size > HEAD_SIZE)
    for _ in range(FLIPS):
        path = draw.choice(files)
        bit = draw.randrange(8 * path.stat().st_size)
        flip(path, bit)
        read = {row["streamOffset"]: row["rawSections"] for row in golden.rows(folder, mode=Mode.DROPMALFORMED)}
        effects = {effect for place, effect in reported(folder).items() if clean.get(place) != effect}
        where = f"{path.name} bit {bit}"
        assert read.items() <= bodies.items(), where
        try:
            found = osiris_reader.served(stream)
        except osiris_reader.NotStartedError:
            assert "does not start the stream" in effects, where
        else:
            assert "does not start the stream" not in effects, where
            assert found.entries.items() <= read.items(), where
            stops = {"fails a consumer that comes to it", "serves the chunk; a consumer does not get beyond it"}
            assert found.whole != bool(stops & effects), where
            if found.entries.keys() == bodies.keys():
                assert golden.rows(folder, columns=("streamOffset",)) == [{"streamOffset": each} for each in bodies]
        flip(path, bit)


def test_filters_of_later_releases(folder: Path) -> None:
    """Chunks with a filter between head and data are as valid as those without, also for a start."""
    whole = golden.rows(folder)
    for index in indexes(folder):
        segment, table = index.with_suffix(".segment"), records(index).copy()
        data, made = segment.read_bytes(), bytearray(segment.read_bytes()[:HEAD_SIZE])
        for number, stop in enumerate([*table["position"][1:].tolist(), len(data)]):
            position = int(records(index)["position"][number])
            table["position"][number] = len(made)
            made += data[position : position + 44] + b"\x10" + data[position + 45 : position + 48]
            made += b"filter of 16 B.." + data[position + 48 : stop]
        segment.write_bytes(made)
        index.write_bytes(index.read_bytes()[:HEAD_SIZE] + table.tobytes())
    found = golden.rows(folder)
    assert [row["rawSections"] for row in found] == [row["rawSections"] for row in whole]
    assert "does not start the stream" not in reported(folder).values()
    assert set(reported(folder).values()) <= {"starts; what is named is not served"}
    flip(indexes(folder)[1], 8 * (HEAD_SIZE + 2 * INDEX_RECORD.size + 27))
    assert golden.rows(folder) == found
