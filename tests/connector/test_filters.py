"""Spark's filters as predicates of the storage core, and the filters that are left to Spark alone."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from connector.batch_reader import MqStoreBatchReader
from connector.filters import pushed
from connector.planning import Load
from connector.schema import to_spark
from storage_core.option_table import read_options
from storage_core.store import Predicate
from tests.golden import archive

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("topic", pa.string()), ("queueId", pa.int32()), ("queueOffset", pa.int64()), ("tags", pa.string()),
     ("body", pa.binary()), ("storeTimestamp", TIME), ("size", pa.int32())]
)  # fmt: skip
AT = datetime(2024, 6, 1, 12, 0, 0, 5, tzinfo=UTC)
MICROS = 1_717_243_200_000_005

PUSHED: list[tuple[Filter, Predicate]] = [
    (EqualTo(("topic",), "a"), Predicate("topic", "=", "a")),
    (EqualNullSafe(("topic",), "a"), Predicate("topic", "=", "a")),
    (EqualNullSafe(("tags",), None), Predicate("tags", "is null")),
    (Not(EqualNullSafe(("tags",), None)), Predicate("tags", "is not null")),
    (Not(EqualTo(("queueId",), 3)), Predicate("queueId", "!=", 3)),
    (In(("queueId",), [1, None]), Predicate("queueId", "in", (1, None))),
    (Not(In(("queueId",), [1, 2])), Predicate("queueId", "not in", (1, 2))),
    (Not(IsNull(("tags",))), Predicate("tags", "is not null")),
    (Not(GreaterThan(("queueOffset",), 7)), Predicate("queueOffset", "<=", 7)),
    (LessThanOrEqual(("storeTimestamp",), AT), Predicate("storeTimestamp", "<=", MICROS)),
    (StringStartsWith(("topic",), "o"), Predicate("topic", "starts with", "o")),
    (Not(StringStartsWith(("topic",), "o")), Predicate("topic", "not starts with", "o")),
]

LEFT: list[Filter] = [
    Not(EqualNullSafe(("tags",), "a")),
    EqualTo(("body",), b"x"),
    EqualTo(("size",), 5),
    EqualTo(("topic", "inner"), "a"),
    EqualTo(("topic",), None),
    EqualTo(("queueOffset",), 1.5),
    EqualTo(("nope",), 1),
    StringContains(("topic",), "o"),
]


@pytest.mark.parametrize(("given", "expected"), PUSHED, ids=lambda value: repr(value)[:60])
def test_pushed(given: Filter, expected: Predicate) -> None:
    assert pushed([given], SCHEMA) == (expected,)


@pytest.mark.parametrize("given", LEFT, ids=lambda value: repr(value)[:60])
def test_left_to_spark(given: Filter) -> None:
    assert pushed([given, EqualTo(("queueId",), 1)], SCHEMA) == (Predicate("queueId", "=", 1),)


def test_names_of_the_kafka_layout() -> None:
    filters: list[Filter] = [EqualTo(("partition",), 1), GreaterThan(("offset",), 5)]
    filters += [EqualTo(("timestamp",), AT), EqualTo(("key",), b"k")]
    assert pushed(filters, SCHEMA, kafka="rocketmq") == (
        Predicate("queueId", "=", 1),
        Predicate("queueOffset", ">", 5),
        Predicate("storeTimestamp", "=", MICROS),
    )


def test_the_log_says_what_the_plan_touches(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    directory = str(archive.unpack("mixed-4.9.3", tmp_path))
    with caplog.at_level(logging.INFO, "mqstore"), Load((directory,), read_options({})) as load:
        load.plan(("topic",), (Predicate("topic", "=", "orders"), Predicate("queueId", "=", 0)))
        rows = sum(q.stop - q.start for q in load._stores[0].store.queues() if (q.topic, q.queue_id) == ("orders", 0))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("mqstore: filters pushed: topic = 'orders' and queueId = 0; the plan touches ")
    assert f"touches {rows} messages, about " in line


def test_an_option_without_effect_has_two_reasons(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark plans a query without filters where nothing tells whether it would have pushed any."""
    schema = to_spark(pa.schema([pa.field("topic", pa.string())]))
    MqStoreBatchReader({"pushdown": "true"}, (shop,), schema).partitions()
    (line,) = capsys.readouterr().err.splitlines()
    assert "this query has no filter that Spark passes on, or spark.sql.python.filterPushdown.enabled is false" in line
