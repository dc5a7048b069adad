"""Filters that are pushed down to a store: the rows are exactly those for which the filter is true, with SQL nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.store import OffsetBound, Predicate, ScanRequest
from tests.contract.engine import FIRST_SECOND, Engine, Message, Seen, read
from tests.contract.messages import COUNTS, messages_of
from tests.reference.predicates import true

MICROS = 1_000_000
MIDDLE = (FIRST_SECOND + 32) * MICROS


def row_of(engine: Engine, message: Message, seen: Seen) -> dict[str, Any]:
    """The fields of a message that the suite has written, under the engine's column names."""
    return {
        engine.queue_column: message.queue,
        engine.offset_column: seen[1],
        engine.text_column: message.text,
        engine.time_column: message.second * MICROS,
        "body": message.body,
    }


CASES: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "a queue": (("queue", "=", "alpha"),),
    "another queue": (("queue", "!=", "alpha"),),
    "some queues": (("queue", "in", ("alpha", "gamma", "omega")),),
    "none of them": (("queue", "not in", ("alpha", "beta")),),
    "a beginning": (("queue", "starts with", "be"),),
    "another beginning": (("queue", "not starts with", "be"),),
    "a piece": (("queue", "contains", "a"),),
    "no queue": (("queue", "=", "omega"),),
    "queues by order": (("queue", ">", "alpha"), ("queue", "<=", "beta")),
    "an offset": (("offset", "=", 7),),
    "another offset": (("offset", "!=", 7),),
    "a range of offsets": (("offset", ">=", 5), ("offset", "<", 20)),
    "the other way round": (("offset", ">", 5), ("offset", "<=", 20)),
    "some offsets": (("offset", "in", (0, 3, 39, 1000)),),
    "no offsets": (("offset", "not in", (0, 1, 2)),),
    "a range of none": (("offset", ">", 20), ("offset", "<", 5)),
    "a text": (("text", "=", "green"),),
    "another text": (("text", "!=", "green"),),
    "some texts": (("text", "in", ("red", "blue")),),
    "none of the texts": (("text", "not in", ("red", "blue")),),
    "texts by beginning": (("text", "starts with", "gree"),),
    "texts by another beginning": (("text", "not starts with", "gree"),),
    "texts by piece": (("text", "contains", "ee"),),
    "no text": (("text", "is null", None),),
    "a text there is": (("text", "is not null", None),),
    "texts by order": (("text", ">=", "green"), ("text", "<", "red")),
    "a time": (("time", "=", MIDDLE),),
    "from a time on": (("time", ">=", MIDDLE),),
    "before a time": (("time", "<", MIDDLE),),
    "between seconds": (("time", ">", MIDDLE + 1),),
    "bodies": (("body", ">", b"1-00030"),),
    "several columns": (("queue", "=", "alpha"), ("offset", ">", 3), ("text", "=", "red"), ("time", "<", MIDDLE)),
}  # fmt: skip


def named(engine: Engine, case: tuple[tuple[str, str, Any], ...]) -> tuple[Predicate, ...]:
    columns = {
        "queue": engine.queue_column,
        "offset": engine.offset_column,
        "text": engine.text_column,
        "time": engine.time_column,
        "body": "body",
    }
    return tuple(Predicate(columns[column], op, value) for column, op, value in case)


def expected(engine: Engine, everything: list[Seen], predicates: tuple[Predicate, ...]) -> list[Seen]:
    by_body = {message.body: message for message in messages_of(COUNTS)}
    return [
        seen for seen in everything
        if all(true(predicate, row_of(engine, by_body[seen[2]], seen)) for predicate in predicates)
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_for_which_all_filters_are_true(
    engine: Engine, store: Path, case: str, everything: list[Seen]
) -> None:
    predicates = named(engine, CASES[case])
    wanted = expected(engine, everything, predicates)
    assert sorted(engine.rows(store, predicates=predicates)) == wanted
    assert sorted(engine.rows(store, predicates=predicates, min_partitions=7)) == wanted


def test_the_cases_tell_right_from_wrong(engine: Engine, everything: list[Seen]) -> None:
    """Most cases select some rows and reject some."""
    found = [len(expected(engine, everything, named(engine, case))) for case in CASES.values()]
    assert len([count for count in found if 0 < count < len(everything)]) >= len(CASES) - 3


def test_one_of_several_groups_of_filters(engine: Engine, store: Path, everything: list[Seen]) -> None:
    groups = (named(engine, CASES["a beginning"]), named(engine, CASES["several columns"]))
    predicates = (Predicate("", "any of", groups), *named(engine, CASES["before a time"]))
    wanted = expected(engine, everything, predicates)
    assert 0 < len(wanted) < len(everything)
    assert sorted(engine.rows(store, predicates=predicates)) == wanted


def test_a_filter_works_on_columns_that_are_not_read(engine: Engine, store: Path, everything: list[Seen]) -> None:
    predicates = named(engine, CASES["several columns"])
    with open_store(str(store)) as opened:
        batches = read(opened.snapshot().plan(ScanRequest(columns=("body",), predicates=predicates)))
    wanted = [body for _, _, body in expected(engine, everything, predicates)]
    assert sorted(pa.Table.from_batches(batches)["body"].to_pylist()) == sorted(wanted)


def test_filters_come_after_offsets(engine: Engine, store: Path, everything: list[Seen]) -> None:
    """The green ones among the last nine messages of a queue, not the last nine green ones."""
    predicates = named(engine, CASES["a text"])
    last = [row for queue in ("alpha", "beta", "gamma") for row in everything if row[0] == queue]
    last = [row for row in last if row[1] >= {"alpha": 31, "beta": 14, "gamma": 0}[row[0]]]
    wanted = expected(engine, last, predicates)
    assert wanted
    assert sorted(engine.rows(store, start=OffsetBound(last=9), predicates=predicates)) == wanted
