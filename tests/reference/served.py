"""Compares what mqstore reads with what a real RocketMQ store serves, column by column, without Spark."""

from __future__ import annotations

import base64
import ipaddress
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store
from storage_core.store import Mode, ScanPartition, ScanRequest
from tests.reference.rocketmq_record import NATIVE_COLUMNS, Log

Row = dict[str, Any]

AS_BROKER = {"mode": Mode.DROPMALFORMED, "verify_crc": False}
"""The options that interface.md 9 describes as reading exactly what a stock broker serves."""

_SAME_NAME = (
    "topic", "queueId", "queueOffset", "physicalOffset", "size", "storeTimestamp", "bornTimestamp", "flag", "sysFlag",
    "reconsumeTimes", "preparedTransactionOffset", "bodyCrc", "offsetMsgId",
)  # fmt: skip


def expected_row(message: dict[str, Any], log: Log) -> Row:
    """The native row of one truth message. What the truth does not contain (stored bytes) is taken from the log.

    The properties are in the order of the stored bytes; the truth has only their names and values.
    """
    row = log.row(message["physicalOffset"])
    expected = {name: message[name] for name in _SAME_NAME}
    expected["body"] = base64.b64decode(message["body64"] or "")
    expected["bornHost"], expected["storeHost"] = _host(message["bornHost"]), _host(message["storeHost"])
    assert dict(row["properties"]) == message["properties"], (row, message)
    for name, value in expected.items():
        assert row[name] == value, f"the twin and the real store differ in {name}: {row[name]!r}, {value!r}"
    if message.get("foundAt"):
        row["topic"], row["queueId"], row["queueOffset"] = message["foundAt"]
    return row


def _host(text: str) -> str:
    """Converts Java's `2001:db8:0:0:0:0:0:1:7` to the interface's `[2001:db8::1]:7`."""
    address, _, port = text.rpartition(":")
    ip = ipaddress.ip_address(address.partition("%")[0])
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def in_partitions(count: int, **fields: Any) -> ScanRequest:
    """A request for one partition, or for at least `count`."""
    if count == 1:
        return ScanRequest(min_partitions=1, max_bytes_per_partition=1 << 40, **fields)
    return ScanRequest(min_partitions=count, **fields)


def read(directory: Path, request: ScanRequest, **options: Any) -> list[Row]:
    """All rows of a request in plan order, read through pickled partitions as Spark would send them."""
    with open_store(str(directory), **options) as store:
        partitions = store.snapshot().plan(request)
        return [row for partition in partitions for row in partition_rows(pickle.loads(pickle.dumps(partition)))]


def by_place(directory: Path, partitions: int, options: dict[str, Any] | None = None, **request: Any) -> list[Row]:
    """The rows that a broker serves for a request, sorted by place; `options` are those of the store."""
    return sorted(read(directory, in_partitions(partitions, **request, **AS_BROKER), **(options or {})), key=place)


def partition_rows(partition: ScanPartition) -> list[Row]:
    """The rows of one partition, with times as epoch milliseconds and maps as lists of pairs."""
    return [row for batch in partition.read() for row in table_rows(pa.Table.from_batches([batch]))]


def table_rows(table: pa.Table) -> list[Row]:
    """The rows of a table, with times as epoch milliseconds and maps as lists of pairs."""
    rows: list[Row] = _whole_milliseconds(table).to_pylist()
    for row in rows:
        if row.get("properties") is not None:
            row["properties"] = list(row["properties"])
    return rows


def _whole_milliseconds(table: pa.Table) -> pa.Table:
    """The table with timestamps as int64 milliseconds. Raises ArrowInvalid if one has a fraction of a millisecond."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            whole = table.column(index).cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
            table = table.set_column(index, column.name, whole)
    return table


def place(row: Row) -> tuple[str, int, int]:
    """Where a row is served: topic, queue id, ordinal."""
    return row["topic"], row["queueId"], row["queueOffset"]


def differences(expected: Iterable[Row], got: Iterable[Row], limit: int = 8) -> list[str]:
    """One line for each row that is missing, unexpected, repeated or different in a column; empty if all are equal."""
    wanted, lines, seen = {(*place(row), row["physicalOffset"]): row for row in expected}, [], set()
    for row in got:
        at = (*place(row), row["physicalOffset"])
        if at in seen:
            lines.append(f"{at}: read twice")
        elif at not in wanted:
            lines.append(f"{at}: read, but the real store does not serve it")
        else:
            lines += [
                f"{at}: {name} is {_short(row.get(name))}, expected {_short(wanted[at][name])}"
                for name in NATIVE_COLUMNS
                if row.get(name, ...) != wanted[at][name]
            ]
        seen.add(at)
    lines += [f"{at}: served by the real store, not read" for at in wanted if at not in seen]
    return lines[:limit] + ([f"… {len(lines) - limit} more differences"] if len(lines) > limit else [])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else text[:97] + "..."
