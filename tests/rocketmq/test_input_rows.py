"""Rows from users that RocketMQ cannot store as they are: cast, counted or rejected by name (interface.md 15 to 17)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import ColumnError, MqStoreError, RowError
from storage_core.rocketmq.write.staging import MOST_QUEUES
from tests.support.rocketmq_writes import GEOMETRY


def append(path: Path, columns: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Writes rows of topic `t` and returns what the store then contains."""
    count = len(next(iter(columns.values())))
    table = pa.table({"topic": ["t"] * count, "body": [b"x"] * count, **columns})
    with open_store(str(path), "rocketmq", **GEOMETRY) as store:
        store.append(table, **options)
        return [row for batch in store.read("t") for row in batch.to_pylist()]


def test_whole_numbers_become_text_in_keys_tags_and_properties(tmp_path: Path) -> None:
    properties = pa.array([[("n", 7)]], pa.map_(pa.string(), pa.int32()))
    (row,) = append(tmp_path / "s", {"key": [42], "tags": [5], "properties": properties})
    assert (row["key"], row["tags"], dict(row["properties"])["n"]) == ("42", "5", "7")


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.timestamp("us")])
def test_other_types_of_properties_are_named(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([0], pa.int64()).cast(kind)
    properties = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["n"]), values)
    with pytest.raises(ColumnError, match=r"column 'properties': holds .*; it must be text or bytes"):
        append(tmp_path / "s", {"properties": properties})


def test_null_properties_are_left_out_and_counted(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.table({
        "topic": ["t"] * 3, "body": [b"x"] * 3,
        "properties": pa.array([[("a", None), ("b", "c")], None, [("d", None)]], kind),
    })  # fmt: skip
    with open_store(str(tmp_path / "s"), "rocketmq", **GEOMETRY) as store:
        job = store.begin_job(rows.schema.names)
        assert job.commit([job.stage(iter(rows.to_batches()))]) == 3
        found = [dict(row["properties"]) for batch in store.read("t") for row in batch.to_pylist()]
    assert found == [{"b": "c"}, {}, {}]
    (line,) = job.warnings
    assert "2 properties had a null name or value and were not written" in line


def properties(*pairs: tuple[str, str]) -> pa.Array:
    """The properties of two messages; only the second has any."""
    return pa.array([[], list(pairs)], pa.map_(pa.string(), pa.string()))


def test_the_checksum_of_another_record_is_dropped(tmp_path: Path) -> None:
    found = append(tmp_path / "s", {"properties": properties(("a", "b"), ("__CRC32#", "1234567890"), ("c", "d"))})
    assert sorted(sorted(dict(row["properties"]).items()) for row in found) == [[], [("a", "b"), ("c", "d")]]


@pytest.mark.parametrize(
    ("pair", "column"),
    [
        (
            ("INNER_MULTI_DISPATCH", "%LMQ%a"),
            "'INNER_MULTI_DISPATCH' is '%LMQ%a': messages of several queues or batches",
        ),
        (("INNER_NUM", "3"), "'INNER_NUM' is '3': messages of several queues or batches are only copied"),
        (("", "b"), "'properties' is empty: a property's name must not be empty"),
        (("a", ""), "'a' is empty: a property's value must not be empty"),
        (("a\1", "b"), r"'properties' is 'a\x01': the bytes 0x01 and 0x02 separate properties"),
        (("a", "\2"), r"'a' is '\x02': the bytes 0x01 and 0x02 separate properties"),
    ],
)
def test_properties_that_no_reader_would_find_again_are_refused(
    tmp_path: Path, pair: tuple[str, str], column: str
) -> None:
    with pytest.raises(RowError, match=f"row 1 of its task: column {re.escape(column)}") as caught:
        append(tmp_path / "s", {"properties": properties(("x", "y"), pair)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["queueId", "reconsumeTimes"])
def test_negative_numbers_are_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(RowError, match=rf"row 1 of its task: column '{column}' is -1: it must be 0 or more"):
        append(tmp_path / "s", {column: pa.array([0, -1], pa.int32())})


def test_a_queue_far_beyond_the_others_must_be_asked_for(tmp_path: Path) -> None:
    """A typing error would create a topic of 100,000 queues, each with its own file on every broker."""
    for number in (MOST_QUEUES, 99_999, 2**31 - 1):
        with pytest.raises(RowError, match=rf"column 'queueId' is {number}: the topic would get more than 1024 queues"):
            append(tmp_path / "s", {"queueId": pa.array([number], pa.int32())})
    assert len(append(tmp_path / "s", {"queueId": pa.array([MOST_QUEUES - 1], pa.int32())})) == 1
    appended = append(tmp_path / "s", {"queueId": pa.array([MOST_QUEUES + 5], pa.int32())}, queues=MOST_QUEUES + 6)
    assert {row["queueId"] for row in appended} == {MOST_QUEUES - 1, MOST_QUEUES + 5}
    # The topic now has that many queues.
    assert len(append(tmp_path / "s", {"queueId": pa.array([MOST_QUEUES + 5], pa.int32())})) == 3


@pytest.mark.parametrize(
    ("column", "value", "bits"),
    [("queueId", 1 << 40, 32), ("queueId", 1.5, 32), ("queueId", "x", 32), ("flag", -(1 << 31) - 1, 32),
     ("reconsumeTimes", float("nan"), 32), ("bornTimestamp", 1.5, 64)],
)  # fmt: skip
def test_a_number_that_does_not_fit_names_its_row(tmp_path: Path, column: str, value: Any, bits: int) -> None:
    rule = f"row 2 of its task: column '{column}' is {value!r}: it must be a whole number of {bits} bits"
    with pytest.raises(RowError, match=re.escape(rule)):
        append(tmp_path / "s", {"topic": ["t"] * 3, "body": ["a"] * 3, column: [None, None, value]})


def test_append_takes_what_pyarrow_makes_a_table_of(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"topic": ["t", "t"], "body": ["a", "b"]}, index=["x", "y"])
    with open_store(str(tmp_path / "s"), "rocketmq", **GEOMETRY) as store:
        assert store.append(frame) == 2
        assert store.append({"topic": ["t"], "body": [b"c"]}) == 1
        assert store.append(pa.record_batch({"topic": ["t"], "body": [b"d"]})) == 1
        with pytest.raises(MqStoreError, match="this str cannot be made one"):
            store.append("rows")


def test_times_before_1970_are_cut_off_as_later_ones(tmp_path: Path) -> None:
    """As unix_millis of Spark: downwards."""
    for unit, finer in (("us", 1000), ("ns", 1_000_000)):
        times = pa.array([-1, -finer, -finer - 1, 1, None], pa.timestamp(unit, "UTC"))
        rows = append(tmp_path / unit, {"queueId": [0] * 5, "bornTimestamp": times})
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        found = [(row["bornTimestamp"] - epoch) // timedelta(milliseconds=1) for row in rows]
        assert found[:4] == [-1, -1, -2, 0]
        assert found[4] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("bornTimestamp", pa.date32(), "is date32[day]; it must be a timestamp, or whole milliseconds"),
        ("bornTimestamp", pa.bool_(), "is bool; it must be a timestamp, or whole milliseconds"),
        ("bornTimestamp", pa.duration("us"), "is duration[us]; it must be a timestamp, or whole milliseconds"),
        ("queueId", pa.bool_(), "is bool; it must be whole numbers"),
        ("flag", pa.timestamp("us"), "is timestamp[us]; it must be whole numbers"),
    ],
)
def test_what_arrow_would_take_for_numbers(name: str, kind: pa.DataType, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=re.escape(wanted)):
        append(tmp_path / "s", {name: pa.nulls(1, kind)})


def test_times_in_a_dictionary(tmp_path: Path) -> None:
    moment = datetime(2020, 1, 1, 0, 0, 0, 5999, tzinfo=UTC)
    for unit in ("us", "ns"):
        times = pa.array([moment, None, moment], pa.timestamp(unit, "UTC")).dictionary_encode()
        rows = append(tmp_path / unit, {"topic": ["t"] * 3, "body": ["a"] * 3, "bornTimestamp": times})
        assert rows[0]["bornTimestamp"] == rows[2]["bornTimestamp"] == moment.replace(microsecond=5000)
    with pytest.raises(ColumnError, match="is not a time"):
        append(tmp_path / "s", {"topic": ["t"], "body": ["a"], "bornTimestamp": pa.array([2**62], pa.timestamp("s"))})
