"""Generated predicates on stores of real nodes: a plan with them reads the rows that Python selects from all rows."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.rabbitmq import open_store
from storage_core.store import Mode, Predicate, ScanRequest
from tests.rabbitmq import golden
from tests.reference.predicates import true

Row = dict[str, Any]

_FOLDER = TemporaryDirectory(prefix="pushdown-")
STORES = ("clean", "damaged", "killed", "version 2")
NAMES = {"clean": "s1_mixed_clean_idle", "damaged": "s1_mixed_clean_idle", "killed": "s3_mixed_kill9",
         "version 2": "s11_cqv2_clean"}  # fmt: skip
ORDERED = ("queue", "file", "position", "sequenceId", "size", "body", "messageId", "correlationId", "priority", "guid",
           "timestamp", "expiresAt", "expiration", "deliveryMode", "exchange", "contentType", "location")  # fmt: skip
BOOLEAN = ("redelivered", "persistent")
TEXTS = ("queue", "file", "messageId", "correlationId", "guid", "contentType", "location", "vhost", "store", "type")


@lru_cache(maxsize=len(STORES))
def path_of(kind: str) -> Path:
    """The store of a node; the damaged store has an unreadable message and an unreadable segment."""
    path = golden.unpack(NAMES[kind], Path(_FOLDER.name) / kind) / golden.DEFAULT_VHOST
    if kind == "damaged":
        stored = golden.table(path, predicates=(Predicate("location", "=", "store"),)).to_pylist()[0]
        message_file = path / stored["file"]
        data = bytearray(message_file.read_bytes())
        data[stored["position"] + 26] = 99
        message_file.write_bytes(bytes(data))
        segment = max(path.rglob("*.idx"), key=lambda file: file.stat().st_size)
        segment.write_bytes(segment.read_bytes() + b"\xc0\x01abc")
    return path


def read(kind: str, **request: Any) -> list[Row]:
    """Rows with times in microseconds, because Python's own times cannot represent all of them."""
    mode = Mode.PERMISSIVE if kind == "damaged" else Mode.FAILFAST
    table = golden.table(path_of(kind), mode=mode, **request)
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    return rows


@lru_cache(maxsize=len(STORES))
def everything(kind: str) -> list[Row]:
    return read(kind)


def test_there_is_something_to_filter() -> None:
    assert {kind: len(everything(kind)) > 20 for kind in STORES} == dict.fromkeys(STORES, True)
    damaged = [row for row in everything("damaged") if row["corruption"] is not None]
    assert {row["body"] for row in damaged} == {None}
    assert len(damaged) == 2


def values_of(kind: str, column: str) -> st.SearchStrategy[Any]:
    """Values of the column, or values close to them; for a column without any, one that its type can hold."""
    there = sorted({row[column] for row in everything(kind) if row[column] is not None})
    if not there:
        return st.just(0 if column in ("timestamp", "expiresAt", "priority") else "nothing")
    if isinstance(there[0], int):
        return st.sampled_from(there) | st.sampled_from(there).map(lambda value: value + 1) | st.just(-1)
    return st.sampled_from(there)


@st.composite
def simple(draw: st.DrawFn, kind: str) -> Predicate:
    form = draw(st.sampled_from(("order", "in", "null", "part", "boolean", "list")))
    if form == "boolean":
        return Predicate(draw(st.sampled_from(BOOLEAN)), draw(st.sampled_from(("=", "!="))), draw(st.booleans()))
    if form == "list":
        keys = [key for row in everything(kind) for key in row["routingKeys"] or ()]
        return Predicate("routingKeys", "contains", draw(st.sampled_from(sorted(set(keys)))))
    if form == "part":
        column = draw(st.sampled_from(TEXTS))
        text = draw(values_of(kind, column))
        ops = st.sampled_from(("starts with", "not starts with", "contains"))
        return Predicate(column, draw(ops), text[: draw(st.integers(1, 4))])
    column = draw(st.sampled_from(ORDERED))
    if form == "null":
        return Predicate(column, draw(st.sampled_from(("is null", "is not null"))))
    values = values_of(kind, column)
    if form == "in":
        many = draw(st.lists(st.none() | values, max_size=4))
        return Predicate(column, draw(st.sampled_from(("in", "not in"))), tuple(many))
    return Predicate(column, draw(st.sampled_from(("=", "!=", "<", "<=", ">", ">="))), draw(values))


@st.composite
def filter_queries(draw: st.DrawFn) -> tuple[str, tuple[Predicate, ...]]:
    """A store, and predicates that must all hold."""
    kind = draw(st.sampled_from(STORES))
    one = simple(kind)
    group = st.lists(one, min_size=1, max_size=3).map(tuple)
    groups = st.lists(group, min_size=1, max_size=3).map(lambda found: Predicate("", "any of", tuple(found)))
    return kind, tuple(draw(st.lists(one | one | groups, min_size=1, max_size=3)))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(query=filter_queries(), partitions=st.sampled_from((1, 7)))
def test_pushed_is_what_python_leaves(query: tuple[str, tuple[Predicate, ...]], partitions: int) -> None:
    kind, predicates = query
    expected = [row for row in everything(kind) if all(true(predicate, row) for predicate in predicates)]
    assert read(kind, predicates=predicates, min_partitions=partitions) == expected


@settings(max_examples=60, deadline=None)
@given(
    query=filter_queries(),
    columns=st.lists(st.sampled_from(["queue", "size", "headers", "routingKeys"]), min_size=1, unique=True),
)
def test_filtered_columns_need_not_be_shown(query: tuple[str, tuple[Predicate, ...]], columns: list[str]) -> None:
    kind, predicates = query
    rows = [row for row in everything(kind) if all(true(predicate, row) for predicate in predicates)]
    expected = [{name: row[name] for name in columns} for row in rows]
    assert read(kind, predicates=predicates, columns=tuple(columns)) == expected


def test_what_the_index_answers_is_read_of_few_messages() -> None:
    """A filter on a queue and its sequence ids leaves no other entries in the plan."""
    wanted = (Predicate("queue", "=", "a.small"), Predicate("sequenceId", ">=", 50), Predicate("body", "!=", b""))
    with open_store(str(path_of("clean"))) as store:
        (partition,) = store.snapshot().plan(ScanRequest(predicates=wanted))
    rows = [row for row in everything("clean") if row["queue"] == "a.small" and row["sequenceId"] >= 50]
    assert partition.estimated_rows == len(rows) > 0
    assert sum(batch.num_rows for batch in partition.read()) == len([row for row in rows if row["body"]])


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match="did you mean body") as caught:
        read("clean", predicates=(Predicate("", "any of", ((Predicate("bodi", "=", b"x"),),)),))
    assert (caught.value.name, caught.value.value) == ("filters", "bodi")
