"""Generated predicates through Spark: pushed, not pushed, or as filters of `read`, they select the rows Python selects.

`make test` runs 6 examples, `make test-real-full` 500. The storage core's own test is tests/rocketmq/test_pushdown.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)

from pyspark_mqstore import read
from storage_core.store import Predicate
from tests.support.rocketmq_predicates import STORES, alternatives, holds, made, simple
from tests.support.sampling import WHOLE

pytestmark = pytest.mark.sampled

EXAMPLES = 500 if WHOLE else 6
SHOWN = ["topic", "queueId", "queueOffset", "physicalOffset", "key", "tags", "msgId", "size"]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def value_of(predicate: Predicate) -> Any:
    """The value as a user writes it, with times as datetimes."""
    if not predicate.column.endswith("Timestamp"):
        return list(predicate.value) if isinstance(predicate.value, tuple) else predicate.value
    if isinstance(predicate.value, tuple):
        return [None if each is None else EPOCH + timedelta(microseconds=each) for each in predicate.value]
    return None if predicate.value is None else EPOCH + timedelta(microseconds=predicate.value)


def triple(predicate: Predicate) -> tuple[Any, ...]:
    """A predicate in the form of `read(filters=...)`."""
    return predicate.column, predicate.op, value_of(predicate)


def filters(predicates: tuple[Predicate, ...]) -> list[list[tuple[Any, ...]]]:
    """All predicates as alternatives of triples, with `any of` multiplied out."""
    groups: list[list[tuple[Any, ...]]] = [[]]
    for predicate in predicates:
        each = predicate.value if predicate.op == "any of" else ((predicate,),)
        groups = [[*group, *map(triple, more)] for group in groups for more in each]
    return groups


def sql(predicate: Predicate) -> Column:
    """A predicate as a Spark condition."""
    if predicate.op == "any of":
        groups = [reduce(Column.__and__, map(sql, group)) for group in predicate.value]
        return reduce(Column.__or__, groups)
    column, op, value = F.col(predicate.column), predicate.op, value_of(predicate)
    if op in ("=", "!=", "<", "<=", ">", ">="):
        return {
            "=": column == value, "!=": column != value, "<": column < value, "<=": column <= value,
            ">": column > value, ">=": column >= value,
        }[op]  # fmt: skip
    if op in ("in", "not in"):
        return column.isin(value) if op == "in" else ~column.isin(value)
    if op in ("is null", "is not null"):
        return column.isNull() if op == "is null" else column.isNotNull()
    if predicate.column == "keys":
        return F.array_contains(column, value)
    if op == "contains":
        return column.contains(value)
    return column.startswith(value) if op == "starts with" else ~column.startswith(value)


def says_the_same_in_sql(predicate: Predicate) -> bool:
    """Whether it means the same in SQL: `null not in ()` is true in Spark, but a filter of `read` excludes nulls."""
    if predicate.op == "any of":
        return all(says_the_same_in_sql(each) for group in predicate.value for each in group)
    return predicate.op != "not in" or bool(predicate.value)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(
    seed=st.integers(0, STORES - 1),
    predicates=st.lists(simple() | simple() | alternatives(), min_size=1, max_size=3).map(tuple),
)
def test_three_ways_leave_what_python_leaves(
    pushing: SparkSession, seed: int, predicates: tuple[Predicate, ...]
) -> None:
    assume(all(map(says_the_same_in_sql, predicates)))
    directory, rows = made(seed)
    expected = [tuple(row[name] for name in SHOWN) for row in rows if all(holds(each, row) for each in predicates)]
    source = pushing.read.format("mqstore")
    condition = reduce(Column.__and__, map(sql, predicates))
    frames = [
        source.load(str(directory)).where(condition),
        source.option("pushdown", "true").load(str(directory)).where(condition),
        read(pushing, str(directory), filters=filters(predicates)),
    ]
    ways = [frame.select(F.lit(number).alias("way"), *SHOWN) for number, frame in enumerate(frames)]
    # One job for all three costs a third of three jobs.
    found: list[list[Row]] = [[] for _ in frames]
    for row in reduce(DataFrame.unionAll, ways).collect():
        found[row["way"]].append(tuple(row)[1:])
    for number, got in enumerate(found):
        assert sorted(got, key=repr) == sorted(expected, key=repr), ("not pushed", "pushed", "read")[number]
