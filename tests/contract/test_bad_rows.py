"""Tables and rows that cannot be written: a one-line error names column, value and row, and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import ColumnError, MqStoreError, OptionError, RowError
from tests.contract.engine import Engine
from tests.contract.messages import NEW
from tests.contract.writing import begin_job, contents


def refused(engine: Engine, root: Path, table: pa.Table, kind: type[MqStoreError], **options: Any) -> MqStoreError:
    """The error of a job that is rejected, at its beginning or at its first batch, without leaving a trace."""
    before = contents(root)
    with open_store(str(root)) as opened, pytest.raises(kind) as caught:
        opened.append(table, **options)
    text = str(caught.value)
    assert text.startswith(f"{type(caught.value).__name__}: ")
    assert "\n" not in text
    assert contents(root) == before
    return caught.value


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    number = table.schema.get_field_index(name)
    return table.append_column(name, values) if number < 0 else table.set_column(number, name, values)


def table_of_nulls() -> pa.Array:
    return pa.nulls(len(NEW), pa.string())


# -- columns


def test_an_unknown_column_names_close_ones(engine: Engine, own: Path) -> None:
    table = with_column(engine.table(NEW), "bodi", pa.nulls(len(NEW), pa.string()))
    error = refused(engine, own, table, ColumnError)
    assert error.column == "bodi"
    assert "did you mean body?" in str(error)


def test_letter_case_of_column_names_does_not_matter(engine: Engine, own: Path) -> None:
    table = engine.table(NEW)
    before = len(engine.rows(own))
    with open_store(str(own)) as opened:
        assert opened.append(table.rename_columns([name.upper() for name in table.column_names])) == len(NEW)
    assert len(engine.rows(own)) == before + len(NEW)
    error = refused(engine, own, with_column(table, "BODY", table["body"]), ColumnError)
    assert "says the same" in str(error)


def test_the_columns_that_an_error_lists_are_those_of_a_write(engine: Engine, own: Path) -> None:
    error = refused(engine, own, with_column(engine.table(NEW), "xyzzy", table_of_nulls()), ColumnError)
    listed = str(error).partition("the columns are ")[2].split(", ")
    assert {"body", engine.queue_column, engine.text_column, "value"} <= set(listed)
    assert not {engine.offset_column, "corruption", "store"} & set(listed)


@pytest.mark.parametrize("column", ["body", "queue"])
def test_a_missing_column_is_named(engine: Engine, own: Path, column: str) -> None:
    name = {"body": "body", "queue": engine.queue_column}[column]
    error = refused(engine, own, engine.table(NEW).drop_columns([name]), ColumnError)
    assert error.column == name


def test_a_column_given_twice_is_named(engine: Engine, own: Path) -> None:
    """Once under its own name, once under Kafka's."""
    table = engine.table(NEW)
    error = refused(engine, own, with_column(table, "value", table["body"]), ColumnError)
    assert error.column in ("body", "value")
    assert "value" in str(error)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("body", pa.array(range(len(NEW)))),
        ("queue", pa.array([1.5] * len(NEW))),
        ("time", pa.array(["soon"] * len(NEW))),
    ],
)
def test_a_column_of_a_wrong_type_is_named(engine: Engine, own: Path, column: str, values: pa.Array) -> None:
    name = {"body": "body", "queue": engine.queue_column, "time": engine.time_column}[column]
    error = refused(engine, own, with_column(engine.table(NEW), name, values), ColumnError)
    assert error.column == name


def test_columns_are_checked_before_a_row_is_staged(engine: Engine, own: Path) -> None:
    before = contents(own)
    with open_store(str(own)) as opened, pytest.raises(ColumnError):
        opened.begin_job([engine.queue_column, "body", "bodi"])
    assert contents(own) == before


def test_a_job_that_learns_its_columns_late_checks_them_then(engine: Engine, own: Path) -> None:
    before = contents(own)
    with open_store(str(own)) as opened:
        job = opened.begin_job()
    table = with_column(engine.table(NEW), "bodi", pa.nulls(len(NEW), pa.string()))
    with pytest.raises(ColumnError):
        job.stage(iter(table.to_batches()))
    job.abort()
    assert contents(own) == before


# -- rows


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("body", None, "null"), ("queue", None, "null"), ("queue", "", "empty"), ("queue", "n" * 300, "nnn")],
)
def test_a_bad_row_names_column_value_and_row(
    engine: Engine, own: Path, column: str, value: str | None, message: str
) -> None:
    name = {"body": "body", "queue": engine.queue_column}[column]
    table = engine.table(NEW)
    values = table[name].to_pylist()
    values[17] = value
    error = refused(engine, own, with_column(table, name, pa.array(values, table.schema.field(name).type)), RowError)
    assert (error.column, error.row) == (name, 17)
    assert message in str(error)
    assert len(str(error)) < 400, "a long value is cut"


def test_rows_are_counted_through_all_batches_of_a_task(engine: Engine, own: Path) -> None:
    table = engine.table(NEW)
    values = table["body"].to_pylist()
    values[23] = None
    table = with_column(table, "body", pa.array(values, pa.binary()))
    job = begin_job(engine, own)
    with pytest.raises(RowError) as caught:
        job.stage(iter(table.to_batches(max_chunksize=5)), 3)
    assert caught.value.row == 23
    job.abort()


def test_nothing_of_a_refused_task_stays(engine: Engine, own: Path) -> None:
    """The other tasks of its job remain."""
    table = engine.table(NEW)
    bad = with_column(table, "body", pa.nulls(len(NEW), pa.binary()))
    job = begin_job(engine, own)
    part = job.stage(iter(table.to_batches()), 0)
    before = contents(own)
    with pytest.raises(RowError):
        job.stage(iter([*table.to_batches(max_chunksize=7), *bad.to_batches()]), 1)
    assert contents(own) == before
    assert job.commit([part]) == len(NEW)


# -- options


@pytest.mark.parametrize("begin", [True, False])
def test_an_unknown_option_names_close_ones(engine: Engine, own: Path, begin: bool) -> None:
    before, table = contents(own), engine.table(NEW)
    with open_store(str(own)) as opened, pytest.raises(OptionError, match="lockTimeout") as caught:
        opened.begin_job(lockTimeut="1s") if begin else opened.append(table, lockTimeut="1s")
    assert (caught.value.name, caught.value.value) == ("lockTimeut", "1s")
    assert contents(own) == before


@pytest.mark.parametrize("value", ["soon", "-1s", ""])
def test_a_wrong_value_of_an_option_is_named(engine: Engine, own: Path, value: str) -> None:
    error = refused(engine, own, engine.table(NEW), OptionError, lockTimeout=value)
    assert (error.name, error.value) == ("lockTimeout", value)


def test_names_of_options_have_no_case(engine: Engine, own: Path) -> None:
    with open_store(str(own)) as opened:
        assert opened.append(engine.table(NEW), LOCKTIMEOUT="1s") == len(NEW)
