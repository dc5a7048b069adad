"""Frames as users provide them: types that are cast, and types that are refused with one line."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import ColumnError, RowError
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden
from tests.rabbitmq.writing import small

KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = pa.map_(pa.string(), pa.int32())
TIMES = pa.timestamp("ns", "Europe/Berlin")


def frame(**columns: pa.Array) -> pa.Table:
    """Two rows with a body and a queue; `columns` adds or replaces columns."""
    return pa.table({"queue": pa.array(["q", "q"]), "body": pa.array(["a", "b"]), **columns})


@pytest.mark.parametrize(
    ("column", "values", "error", "text"),
    [
        ("body", pa.array([1, 2]), ColumnError, "column 'body': holds int64; it must be text or bytes"),
        ("queue", pa.array([1.5, 2]), ColumnError, "column 'queue': holds double; it must be text or bytes"),
        ("queue", pa.array(["ü".encode(), b"\xff"]), RowError,
         "row 1 of its task: column 'queue' is '\ufffd': it is not UTF-8 text"),
        ("exchange", pa.array([1, 2]), ColumnError, "column 'exchange': holds int64; it must be text or bytes"),
        ("headers", pa.array([1, 2]), ColumnError,
         "column 'headers': is int64; it must be map<string, string>, or Kafka's array of key and value"),
        ("headers", pa.array([["a"], []]), ColumnError, "column 'headers': is list<item: string>; it must be map<"),
        ("priority", pa.array(["3", "a"]), RowError,
         "row 1 of its task: column 'priority' is 'a': a 64-bit integer is required"),
        ("priority", pa.array([1.0, 1.5]), RowError, "row 1 of its task: column 'priority' is 1.5: a 64-bit integer"),
        ("priority", pa.array([[1], [2]]), ColumnError, "column 'priority': is list<item: int64>; it must be whole"),
        ("timestamp", pa.array(["x", "y"]), ColumnError, "column 'timestamp': is string; it must be a timestamp"),
        ("routingKeys", pa.array(["k", "l"]), ColumnError,
         "column 'routingKeys': is string; it must be an array of texts"),
        ("routingKeys", pa.array([[1], []]), ColumnError, "column 'routingKeys': holds int64; it must be text or"),
        ("deliveryMode", pa.array(["x", "2"]), RowError, "row 0 of its task: column 'deliveryMode' is 'x': a 64-bit"),
        ("messageId", pa.array([True, False]), ColumnError,
         "column 'messageId': holds bool; it must be text or bytes (or whole numbers)"),
        ("expiresAt", pa.array([1, 2]), ColumnError, "column 'expiresAt': is int64; it must be a timestamp"),
        ("expiration", pa.array(["60000", "60s"]), RowError,
         "row 1 of its task: column 'expiration' is '60s': a whole number of milliseconds is wanted, at most 315360"),
        ("expiration", pa.array([None, ""]), RowError, "row 1 of its task: column 'expiration' is empty: a whole"),
        ("expiration", pa.array(["1", b"\xff"], pa.binary()), RowError, "row 1 of its task: column 'expiration' is "),
        ("expiration", pa.array([-1, 5]), RowError, "row 0 of its task: column 'expiration' is '-1': a whole number"),
        ("expiration", pa.array([315_360_000_000, 315_360_000_001]), RowError,
         "row 1 of its task: column 'expiration' is '315360000001': a whole number of milliseconds is wanted"),
        ("rawProperties", pa.array([b"\x11\0\x02\x01\x35", b"\x11\0\x02\x03\x35 s"]), RowError,
         "row 1 of its task: column 'rawProperties' is 11000203352073: its expiration is '5 s', not a whole"),
        ("rawProperties", pa.array([1, 2]), ColumnError, "column 'rawProperties': holds int64; it must be text or"),
        ("headers", pa.array([[], [{"key": None, "value": b"x"}]], KAFKA_HEADERS), RowError,
         "row 1 of its task: column 'headers' is null: a header needs a name"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_one_line(
    column: str, values: pa.Array, error: type[Exception], text: str, tmp_path: Path
) -> None:
    store = small(tmp_path)
    store.append(frame())
    before = {name: entry[1:] for name, entry in fingerprint(tmp_path).items()}
    table = frame(**{column: values})
    job = store.begin_job(table.schema.names)
    with pytest.raises(error) as caught:
        job.stage(iter(table.to_batches()))
    assert str(caught.value).startswith(f"{error.__name__}: {text}")
    assert "\n" not in str(caught.value)
    job.abort()
    assert {name: entry[1:] for name, entry in fingerprint(tmp_path).items()} == before


def written(tmp_path: Path, **columns: pa.Array) -> list[dict[str, Any]]:
    store = small(tmp_path)
    assert store.append(frame(**columns)) == 2
    rows: list[dict[str, Any]] = golden.table(Path(store.path)).to_pylist()
    return rows


def test_whole_numbers_are_texts_where_texts_are_wanted(tmp_path: Path) -> None:
    rows = written(
        tmp_path,
        messageId=pa.array([7, None], pa.int32()),
        correlationId=pa.array([1 << 40, -1]),
        expiration=pa.array([60_000, 0], pa.uint32()),
    )
    assert [(row["messageId"], row["correlationId"], row["expiration"]) for row in rows] == [
        ("7", str(1 << 40), "60000"), (None, "-1", "0"),
    ]  # fmt: skip


def test_expirations_that_a_node_takes(tmp_path: Path) -> None:
    for number, pair in enumerate([("+5", "-0"), ("315360000000", "00000000000000000000000000005"), ("007", None)]):
        rows = written(tmp_path / str(number), expiration=pa.array(pair))
        assert tuple(row["expiration"] for row in rows) == pair


def test_headers_of_maps_and_of_kafka(tmp_path: Path) -> None:
    kafka = pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None], KAFKA_HEADERS)
    assert [row["headers"] for row in written(tmp_path / "kafka", headers=kafka)] == [[("a", "1"), ("b", "")], None]
    counts = pa.array([None, [("n", 5)]], COUNTS)
    assert [row["headers"] for row in written(tmp_path / "numbers", headers=counts)] == [None, [("n", "5")]]
    sliced = pa.array([[("x", "y")], [("a", "b")], [("c", "d"), ("e", "f")]], pa.map_(pa.string(), pa.string()))
    assert [row["headers"] for row in written(tmp_path / "sliced", headers=sliced.slice(1))] == [
        [("a", "b")], [("c", "d"), ("e", "f")],
    ]  # fmt: skip


def test_numbers_and_times_of_any_width(tmp_path: Path) -> None:
    nanoseconds = pa.array([1_700_000_000_123_456_789, None], pa.int64()).cast(TIMES)
    rows = written(
        tmp_path / "times",
        priority=pa.array(["3", None]),
        deliveryMode=pa.array([2.0, 2.0]),
        timestamp=pa.array([date(2024, 1, 1), None]),
        expiresAt=nanoseconds,
    )
    assert [(row["priority"], row["deliveryMode"]) for row in rows] == [(3, 2), (None, 2)]
    assert rows[0]["timestamp"].timestamp() == 1_704_067_200
    assert rows[0]["expiresAt"].timestamp() == pytest.approx(1_700_000_000.123456)
    seconds = written(tmp_path / "seconds", timestamp=pa.array([5, None], pa.int32()))
    assert [row["timestamp"] and row["timestamp"].timestamp() for row in seconds] == [5, None]


def test_columns_of_nulls_and_of_dictionaries(tmp_path: Path) -> None:
    rows = written(
        tmp_path,
        headers=pa.nulls(2),
        messageId=pa.nulls(2),
        routingKeys=pa.nulls(2),
        exchange=pa.array(["x", None]).dictionary_encode(),
        rawProperties=pa.nulls(2),
    )
    assert [(row["exchange"], row["routingKeys"], row["headers"]) for row in rows] == [
        ("x", ["q"], None),
        ("", ["q"], None),
    ]
    with pytest.raises(RowError, match="row 0 of its task: column 'body' is null"):
        written(tmp_path / "other", body=pa.nulls(2))


def test_other_columns_count_only_without_raw_properties(tmp_path: Path) -> None:
    """A node may hold values that a write refuses (interface.md 35)."""
    target = tmp_path / "v"
    raw = pa.array([b"\x10\x00\x02", None], pa.binary())
    columns = {"rawProperties": raw, "deliveryMode": pa.array([247, 2]), "priority": pa.array([900, 3])}
    text = pa.array(["x" * 300, "m"])
    small(target).append(frame(**columns, messageId=text, timestamp=pa.array([-1, 5])))
    rows = golden.table(target / "vhosts" / "v", columns=("deliveryMode", "priority", "messageId")).to_pylist()
    assert rows[1] == {"deliveryMode": 2, "priority": 3, "messageId": "m"}
    with pytest.raises(RowError, match="row 1 of its task: column 'priority' is 900"):
        small(tmp_path / "w").append(frame(**{**columns, "rawProperties": raw, "priority": pa.array([3, 900])}))


def test_a_message_without_routing_keys_gets_that_of_its_queue(tmp_path: Path) -> None:
    """A node's channel takes the first key of each message that it delivers, and crashes where there is none."""
    store = small(tmp_path)
    keys = pa.array([[], ["k", "l"]], pa.list_(pa.string()))
    store.append(frame(routingKeys=keys))
    store.append(frame(routingKeys=keys.take(pa.array([1, 0]))))
    found = [keys for batch in store.read("q") for keys in batch["routingKeys"].to_pylist()]
    assert found == [["q"], ["k", "l"], ["k", "l"], ["q"]]
