"""Writes RocketMQ stores of any size quickly, for the benchmarks: records of one size, filled by numpy.

The bytes are those of a 4.9 broker: rolled files, correct CRCs, consume queues with tag codes; or, as after a crash,
no queues and an `abort` file. Everything is deterministic, so two runs measure the same bytes.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.make_index import write_index
from storage_core.formats.java_hash import java_hash
from storage_core.formats.rocketmq.consumequeue import encode_entries
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.formats.rocketmq.message import BLANK, HEADER_V4, MAGIC_BLANK, MAGIC_V1

Bytes = npt.NDArray[np.uint8]

TOPICS = (b"orders", b"ship00", b"refund", b"paymnt")
TAGS = (b"create", b"update", b"cancel", b"closed")
ENTRIES_PER_FILE = 300_000
FIRST_MS = 1_700_000_000_000
CHUNK_BYTES = 64 << 20
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_KEY = b"KEYS\x01ORD-"
_UNIQUE = b"\x02UNIQ_KEY\x017F0000010000000000000000"
_CLUSTER = b"\x02CLUSTER\x01Default\x02TAGS\x01"


@dataclass(frozen=True)
class StoreShape:
    """The shape of a store. Message i is in queue i % queue_count; the queues are divided evenly among the topics.

    `crashed`: no consume queues, and an `abort` file. `index`: slots and entries of index files, if there are any.
    """

    message_count: int
    body_size: int
    queue_count: int = 16
    topic_count: int = 4
    file_size: int = 1 << 30
    crashed: bool = False
    index: Geometry | None = None

    def scaled(self, scale: float) -> StoreShape:
        """The same shape with another number of messages, at least 20."""
        return replace(self, message_count=max(int(self.message_count * scale), 20))

    @property
    def record_size(self) -> int:
        """Bytes that one message takes in the log."""
        return _record(self.body_size).itemsize

    @property
    def log_size(self) -> int:
        """Bytes of all records."""
        return self.message_count * self.record_size


def make_store(path: str, shape: StoreShape) -> str:
    """Writes a store to `path`, which must not exist. Returns `path`."""
    os.makedirs(os.path.join(path, "commitlog"))
    per_file = (shape.file_size - BLANK.size) // shape.record_size
    for number, first in enumerate(range(0, shape.message_count, per_file)):
        count = min(per_file, shape.message_count - first)
        base = number * shape.file_size
        _write_log_file(os.path.join(path, "commitlog", f"{base:020d}"), shape, first, count, base)
    if shape.crashed:
        with open(os.path.join(path, "abort"), "wb"):
            pass
    else:
        _write_queues(path, shape, physical_offsets_of(shape))
    if shape.index is not None:
        topics = pa.array([topic.decode() for topic in TOPICS], pa.string())
        store_ms = FIRST_MS + 1 + np.arange(shape.message_count)
        write_index(path, shape.index, topics, topics_of(shape), physical_offsets_of(shape), store_ms)
    return path


def physical_offsets_of(shape: StoreShape) -> npt.NDArray[np.int64]:
    """The address of every message."""
    per_file = (shape.file_size - BLANK.size) // shape.record_size
    numbers = np.arange(shape.message_count)
    return numbers // per_file * shape.file_size + numbers % per_file * shape.record_size


def topics_of(shape: StoreShape) -> npt.NDArray[np.int64]:
    """The number in TOPICS of every message's topic."""
    return np.arange(shape.message_count) % shape.queue_count // _queues_per_topic(shape)


def _write_log_file(path: str, shape: StoreShape, first: int, count: int, base: int) -> None:
    template = _template(shape.body_size)
    rows = max(CHUNK_BYTES // shape.record_size, 1)
    with open(path, "wb") as file:
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            numbers = np.arange(first + start, first + stop)
            file.write(_records(template, shape, numbers, base + np.arange(start, stop) * shape.record_size).data)
        if first + count < shape.message_count:
            blank = np.array([(shape.file_size - count * shape.record_size, MAGIC_BLANK)], BLANK.dtype)
            file.write(blank.tobytes())
        file.truncate(shape.file_size)


def _record(body_size: int) -> np.dtype[Any]:
    properties = [
        ("key_name", "u1", len(_KEY)), ("key", "u1", 10), ("unique_name", "u1", len(_UNIQUE)), ("unique", "u1", 8),
        ("cluster", "u1", len(_CLUSTER)), ("tag", "u1", 6),
    ]  # fmt: skip
    return np.dtype(
        [
            ("header", HEADER_V4.dtype),
            ("body", "u1", body_size),
            ("topic_size", "u1"),
            ("topic", "u1", 6),
            ("properties_size", ">i2"),
            *properties,
        ]
    )


def _template(body_size: int) -> npt.NDArray[Any]:
    """One record with everything that all records share; its body is JSON with 10 digits of a key."""
    record = np.zeros(1, _record(body_size))
    header = record["header"]
    header["total_size"], header["magic"], header["body_length"] = record.itemsize, MAGIC_V1, body_size
    header["born_address"], header["store_address"], header["store_port"] = 0x0A000001, 0x7F000001, 10911
    filler = np.random.default_rng(7).integers(0x61, 0x7B, body_size, np.uint8).tobytes()
    start, stop = b'{"order":"ORD-0000000000","note":"', b'"}'
    record["body"] = _bytes((start + filler)[: body_size - len(stop)] + stop)
    record["topic_size"] = len(TOPICS[0])
    record["properties_size"] = record.itemsize - _record(body_size).fields["key_name"][1]  # type: ignore[index]
    record["key_name"], record["unique_name"], record["cluster"] = _bytes(_KEY), _bytes(_UNIQUE), _bytes(_CLUSTER)
    return record


def _records(
    template: npt.NDArray[Any],
    shape: StoreShape,
    numbers: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
) -> npt.NDArray[Any]:
    """The records of messages `numbers` at addresses `physical_offsets`."""
    records = np.repeat(template, len(numbers))
    queue = numbers % shape.queue_count
    header = records["header"]
    header["queue_id"] = queue % _queues_per_topic(shape)
    header["queue_offset"], header["physical_offset"] = numbers // shape.queue_count, physical_offsets
    header["born_ms"], header["store_ms"] = FIRST_MS + numbers, FIRST_MS + 1 + numbers
    header["born_port"] = 4000 + numbers % 7
    digits = ((numbers[:, None] // 10 ** np.arange(9, -1, -1)) % 10 + 0x30).astype(np.uint8)
    records["body"][:, 14:24] = digits
    records["key"] = digits
    records["unique"] = _HEX[(numbers[:, None] >> (4 * np.arange(7, -1, -1))) & 15]
    records["topic"] = _bytes(b"".join(TOPICS)).reshape(-1, 6)[queue // _queues_per_topic(shape)]
    records["tag"] = _bytes(b"".join(TAGS)).reshape(-1, 6)[_tag(shape, numbers)]
    bodies, size = memoryview(records["body"].tobytes()), shape.body_size
    sums = (zlib.crc32(bodies[at : at + size]) for at in range(0, len(bodies), size))
    header["body_crc"] = np.fromiter(sums, np.int64, len(numbers)) & 0x7FFFFFFF
    return records


def _write_queues(path: str, shape: StoreShape, physical_offsets: npt.NDArray[np.int64]) -> None:
    codes = np.array([java_hash(tag.decode()) for tag in TAGS])
    numbers = np.arange(shape.message_count)
    for queue in range(min(shape.queue_count, shape.message_count)):
        mine = numbers[queue :: shape.queue_count]
        sizes = np.full(len(mine), shape.record_size)
        entries = encode_entries(physical_offsets[mine], sizes, codes[_tag(shape, mine)]).tobytes()
        topic = TOPICS[queue // _queues_per_topic(shape)].decode()
        folder = os.path.join(path, "consumequeue", topic, str(queue % _queues_per_topic(shape)))
        os.makedirs(folder)
        file_size = ENTRIES_PER_FILE * 20
        for base in range(0, len(entries), file_size):
            with open(os.path.join(folder, f"{base:020d}"), "wb") as file:
                file.write(entries[base : base + file_size])
                file.truncate(file_size)


def _queues_per_topic(shape: StoreShape) -> int:
    return -(-shape.queue_count // min(shape.topic_count, shape.queue_count))


def _tag(shape: StoreShape, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    tags: npt.NDArray[np.int64] = numbers // shape.queue_count % len(TAGS)
    return tags


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)
