"""The rows of an imported file as record batches: Parquet, or JSON lines as `export` writes them.

The engines decide which columns and values a write accepts.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, islice
from typing import IO, Any

import pyarrow as pa

from command_line.output.progress import ProgressLine
from command_line.output.rows import BODY_COLUMNS
from command_line.parameters import PARQUET, PIPE
from storage_core.closable import Closable
from storage_core.errors import MqStoreError, OptionError, shorten

JSON = "json"
ROWS_AT_ONCE = 8192
WORK = "checking messages"

TIME = pa.timestamp("us", "UTC")
TEXTS = pa.map_(pa.string(), pa.string())
TYPES: dict[str, pa.DataType] = {
    "body": pa.binary(), "value": pa.binary(), "rawProperties": pa.binary(),
    "properties": TEXTS, "headers": TEXTS, "keys": pa.list_(pa.string()), "routingKeys": pa.list_(pa.string()),
    "bornTimestamp": TIME, "storeTimestamp": TIME, "timestamp": TIME, "expiresAt": TIME,
}  # fmt: skip
"""Column → its type, if JSON does not determine it."""

BODY_BYTES: dict[str, Callable[[Any], bytes]] = {
    "text": lambda value: value.encode() if isinstance(value, str) else json.dumps(value).encode(),
    "json": lambda value: value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode(),
    "hex": bytes.fromhex,
    "base64": lambda value: base64.b64decode(value, validate=True),
}
"""How bodies are written in JSON lines → the function that returns their bytes."""

NOT_OF_THE_TYPE = (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowInvalid, pa.ArrowTypeError)


def shown_name(path: str) -> str:
    """The name of a file in messages."""
    return "stdin" if path == PIPE else path


class Incoming(Closable, ABC):
    """A file of rows. `columns` are the names of their columns."""

    columns: Sequence[str]

    @abstractmethod
    def batches(self, line: ProgressLine) -> Iterator[pa.RecordBatch]:
        """The rows in order. Raises MqStoreError, with the line number, for a line that is not a row."""


class ParquetRows(Incoming):
    """A Parquet file, in its own types."""

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self._path = path
        try:
            self._file = parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise MqStoreError(f"{path}: not a Parquet file: {shorten(str(error))}") from None
        self.columns = self._file.schema_arrow.names

    def batches(self, line: ProgressLine) -> Iterator[pa.RecordBatch]:
        """The rows of the file's row groups."""
        done, total = 0, self._file.metadata.num_rows
        try:
            for batch in self._file.iter_batches(ROWS_AT_ONCE):
                yield batch
                done += batch.num_rows
                line.messages_done(WORK, done, total)
        except (pa.ArrowInvalid, OSError) as error:
            raise MqStoreError(f"{self._path}: damaged after row {done}: {shorten(str(error))}") from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class JsonRows(Incoming):
    """JSON lines: one object per line. All have the columns of the first; a name that a line lacks is null."""

    def __init__(self, path: str, body: str) -> None:
        self._path, self._body = shown_name(path), BODY_BYTES[body]
        # Closed by `close`, unless it is stdin.
        self._file: IO[bytes] = open(0 if path == PIPE else path, "rb", closefd=path != PIPE)  # noqa: SIM115
        self.columns: tuple[str, ...] = ()
        try:
            read = self._first_lines()
            self._lines = chain(read, self._file)  # a pipe cannot be read twice
            self.columns = tuple(self._object(read[-1], len(read))) if read and read[-1].strip() else ("body",)
        except BaseException:
            self.close()
            raise

    def _first_lines(self) -> list[bytes]:
        """The lines up to the first that is not blank."""
        read: list[bytes] = []
        for text in self._file:
            read.append(text)
            if text.strip():
                break
        return read

    def batches(self, line: ProgressLine) -> Iterator[pa.RecordBatch]:
        """The rows, some thousands per batch."""
        number = 0
        while lines := list(islice(self._lines, ROWS_AT_ONCE)):
            at = [number + place + 1 for place, text in enumerate(lines) if text.strip()]
            rows = [self._object(lines[each - number - 1], each) for each in at]
            yield pa.RecordBatch.from_arrays(
                [self._column(name, rows, at) for name in self.columns], names=list(self.columns)
            )
            number += len(lines)
            line.messages_done(WORK, number, 0)

    def _object(self, text: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MqStoreError(f"{self._path}: line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise MqStoreError(f"{self._path}: line {number}: not a JSON object, but {shorten(str(row))}")
        for name in row if self.columns else ():
            if name not in self.columns:
                wanted = f"the first line has no '{name}'; all lines need the same names"
                raise MqStoreError(f"{self._path}: line {number}: {wanted}")
        return row

    def _column(self, name: str, rows: Sequence[dict[str, Any]], at: Sequence[int]) -> pa.Array:
        values = [row.get(name) for row in rows]
        try:
            return self._array(name, values)
        except NOT_OF_THE_TYPE as error:
            count = bisect_left(range(len(values)), True, key=lambda stop: self._is_wrong(name, values[: stop + 1]))
            raise MqStoreError(f"{self._path}: line {at[count]}: column '{name}': {error}") from None

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """A column of values of JSON. Raises one of NOT_OF_THE_TYPE."""
        kind = TYPES.get(name)
        if name in BODY_COLUMNS:
            values = [None if value is None else self._body(value) for value in values]
        elif kind == pa.binary():
            values = [None if value is None else base64.b64decode(value, validate=True) for value in values]
        elif kind == TIME:
            values = [None if value is None else _moment(value) for value in values]
        elif kind == TEXTS:
            values = [None if value is None else _pairs(value) for value in values]
        elif kind is not None and any(isinstance(value, str) for value in values):
            raise ValueError('a list of texts such as ["a", "b"] is required')  # not the letters of one
        return pa.array(values, kind)

    def _is_wrong(self, name: str, values: Sequence[Any]) -> bool:
        try:
            self._array(name, values)
        except NOT_OF_THE_TYPE:
            return True
        return False

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _pairs(value: object) -> list[tuple[str, str | None]]:
    """An object of texts; whole numbers count as their digits, as in every write."""
    if not isinstance(value, dict):
        raise ValueError('an object such as {"a": "b"} is required')
    for name, each in value.items():
        if not (each is None or isinstance(each, str) or (isinstance(each, int) and not isinstance(each, bool))):
            raise ValueError(f"{name!r} is {shorten(json.dumps(each))}; a text is required")
    return [(name, str(each) if isinstance(each, int) else each) for name, each in value.items()]


def _moment(value: object) -> datetime:
    """A time as `export` writes it, or epoch milliseconds."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value / 1000, UTC)
    raise ValueError(f"{value!r} is no time")


@contextmanager
def incoming(path: str, kind: str, body: str) -> Iterator[Incoming]:
    """The rows of a file that is open while the block runs. Raises OptionError, MqStoreError, OSError."""
    try:
        rows = ParquetRows(path) if kind == PARQUET else JsonRows(path, body)
    except FileNotFoundError:
        raise OptionError("FILE", path, "there is no such file") from None
    with rows:
        yield rows
