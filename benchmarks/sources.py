"""The Python data sources that ours is compared with: ready batches, `struct.unpack` by hand, and one that drops rows.

Those that read get the same number of partitions as ours. Spark's workers import this module.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

FIVE_TYPES = "topic string, queueId int, queueOffset long, key string, body binary"

_READY: dict[str, pa.RecordBatch] = {}


class ReadyPartition(InputPartition):
    """A file with one ready batch, and the number of its rows in each yielded batch."""

    def __init__(self, path: str, counts: Sequence[int]) -> None:
        super().__init__(None)
        self.path, self.counts = path, list(counts)


class ReadySource(DataSource):
    """`format("ready")`: what Spark can do when a source costs nothing. Option `path`: a folder of `write_ready`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(ready_batch(parts_of(self.options["path"])[0].path).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(self.options["path"])


class _ReadyReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return list(parts_of(self._folder))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadyPartition):
            batch = ready_batch(partition.path)
            for count in partition.counts:
                yield batch if count == batch.num_rows else batch.slice(0, count)


def write_ready(folder: Path, partitions: Sequence[Any], schema: pa.Schema) -> int:
    """Saves the largest batch of each partition of our own plan, and the row counts of all. Returns the row total."""
    folder.mkdir()
    layout = []
    for number, partition in enumerate(partitions):
        largest, counts = None, []
        for batch in partition.read():
            counts.append(batch.num_rows)
            if largest is None or batch.num_rows > largest.num_rows:
                largest = batch
        if largest is None:
            continue
        path = folder / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            columns = [column.cast(field.type) for column, field in zip(largest, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        layout.append({"path": str(path), "counts": counts})
    (folder / "layout.json").write_text(json.dumps(layout))
    return sum(sum(part["counts"]) for part in layout)


def ready_batch(path: str) -> pa.RecordBatch:
    """The batch of a file, read once by each process."""
    if path not in _READY:
        with pa.OSFile(path, "rb") as file:
            _READY[path] = pa.ipc.open_file(file).get_batch(0)
    return _READY[path]


def parts_of(folder: str) -> list[ReadyPartition]:
    """The partitions that `write_ready` saved in a folder."""
    return [
        ReadyPartition(part["path"], part["counts"]) for part in json.loads((Path(folder) / "layout.json").read_text())
    ]


class LogPartition(InputPartition):
    """A span of one log file that begins with a record."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        super().__init__(None)
        self.path, self.start, self.stop = path, start, stop


class UnpackSource(DataSource):
    """`format("unpack")`: what one would write by hand, tuples of five columns."""

    @classmethod
    def name(cls) -> str:
        return "unpack"

    def schema(self) -> str:
        return FIVE_TYPES

    def reader(self, schema: StructType) -> DataSourceReader:
        return _UnpackReader(dict(self.options))


class _UnpackReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._folder = Path(options["path"]) / "commitlog"
        self._count, self._record_size = int(options["partitions"]), int(options["record_size"])
        self._log_size = int(options["log_size"])

    def partitions(self) -> list[InputPartition]:
        files = sorted(self._folder.iterdir())
        left = self._log_size
        spans = []
        for file in files:
            records = min(file.stat().st_size - 8, left) // self._record_size
            left -= records * self._record_size
            pieces = -(-self._count // len(files))
            bounds = [records * piece // pieces * self._record_size for piece in range(pieces + 1)]
            spans += [LogPartition(str(file), *pair) for pair in pairwise(bounds)]
        return list(spans)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if isinstance(partition, LogPartition):
            with open(partition.path, "rb") as file:
                file.seek(partition.start)
                yield from unpacked(file.read(partition.stop - partition.start))


def unpacked(data: bytes) -> Iterator[tuple[str, int, int, str | None, bytes]]:
    """Five columns of the records of a piece of log, one `struct.unpack_from` after the other."""
    header = struct.Struct(">iIiiiqqiqIiqIiiqi").unpack_from
    position = 0
    while position < len(data):
        fields = header(data, position)
        body = position + 88
        end = body + fields[16]
        topic_size = data[end]
        topic = data[end + 1 : end + 1 + topic_size].decode()
        properties = data[end + 3 + topic_size : position + fields[0]].decode()
        pairs = dict(pair.split("\x01", 1) for pair in properties.split("\x02") if pair)
        yield topic, fields[3], fields[5], pairs.get("KEYS"), data[body:end]
        position += fields[0]


class DroppingSource(DataSource):
    """`format("dropping")`: what a write costs when the source does nothing with the rows but count them."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def schema(self) -> str:
        return "count long"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DroppingWriter()


@dataclass
class CountMessage(WriterCommitMessage):
    """The number of rows that a task received."""

    count: int


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return CountMessage(sum(batch.num_rows for batch in iterator))
