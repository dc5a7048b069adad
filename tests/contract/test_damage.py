"""How reads treat messages that cannot be read, and files that have changed since the plan."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, DataLossError
from storage_core.store import Mode, ScanPartition, ScanRequest
from tests.contract.engine import Engine, Seen, read


@pytest.fixture
def damaged(engine: Engine, own: Path, everything: list[Seen]) -> tuple[Path, Seen]:
    """A store, and its only message that cannot be read."""
    engine.damage(own, everything[1])
    return own, everything[1]


@pytest.mark.parametrize("count", [1, 7])
def test_failfast_names_file_and_position(engine: Engine, damaged: tuple[Path, Seen], count: int) -> None:
    root, _ = damaged
    with pytest.raises(CorruptionError, match=rf"^CorruptionError: {root}/\S+ at \d+: ") as caught:
        engine.rows(root, min_partitions=count)
    assert Path(caught.value.path).is_file()
    assert 0 <= caught.value.position < Path(caught.value.path).stat().st_size
    assert "\n" not in str(caught.value)


def test_failfast_names_the_way_out(engine: Engine, damaged: tuple[Path, Seen]) -> None:
    with pytest.raises(CorruptionError, match="mode=DROPMALFORMED"):
        engine.rows(damaged[0])


@pytest.mark.parametrize("count", [1, 7])
def test_dropmalformed_leaves_out_that_message_alone(
    engine: Engine, damaged: tuple[Path, Seen], everything: list[Seen], count: int
) -> None:
    root, lost = damaged
    found = sorted(engine.rows(root, mode=Mode.DROPMALFORMED, min_partitions=count))
    assert found == [row for row in everything if row != lost]


def test_permissive_says_in_its_row_what_failfast_says(
    engine: Engine, damaged: tuple[Path, Seen], everything: list[Seen]
) -> None:
    root, lost = damaged
    with pytest.raises(CorruptionError) as caught:
        engine.rows(root)
    columns = (engine.queue_column, engine.offset_column, "body", "corruption")
    with open_store(str(root)) as opened:
        request = ScanRequest(columns=columns, mode=Mode.PERMISSIVE)
        rows = pa.Table.from_batches(read(opened.snapshot().plan(request))).to_pylist()
    assert len(rows) == len(everything)
    (row,) = [row for row in rows if row["corruption"] is not None]
    assert row["corruption"].startswith(f"CorruptionError: {caught.value.path} at {caught.value.position}: ")
    assert str(caught.value).startswith(row["corruption"]), "but for the advice to leave it out"
    assert (row[engine.queue_column], row[engine.offset_column]) == lost[:2]
    assert sorted(tuple(row[name] for name in columns[:3]) for row in rows if row["corruption"] is None) == [
        each for each in everything if each != lost
    ]


def test_a_damaged_message_that_is_not_selected_harms_nobody(
    engine: Engine, damaged: tuple[Path, Seen], everything: list[Seen]
) -> None:
    root, lost = damaged
    others = [row for row in everything if row[0] != lost[0]]
    assert sorted(engine.rows(root, topics=tuple({row[0] for row in others}))) == others


# -- files that change after the plan


def planned(engine: Engine, root: Path) -> list[ScanPartition]:
    with open_store(str(root)) as opened:
        return opened.snapshot().plan(engine.request())


def check_loss(engine: Engine, parts: list[ScanPartition], root: Path) -> None:
    with pytest.raises((DataLossError, CorruptionError), match=rf"^\w+Error: {root}/") as caught:
        read(parts)
    assert "\n" not in str(caught.value)


def test_a_file_that_vanished_since_the_plan_is_named(engine: Engine, own: Path) -> None:
    parts = planned(engine, own)
    engine.message_files(own)[0].unlink()
    check_loss(engine, parts, own)


def test_a_file_that_shrank_since_the_plan_is_named(engine: Engine, own: Path) -> None:
    parts = planned(engine, own)
    os.truncate(engine.message_files(own)[0], 50)
    check_loss(engine, parts, own)


def test_a_store_that_vanished_since_the_plan_is_named(engine: Engine, own: Path) -> None:
    parts = planned(engine, own)
    shutil.rmtree(own)
    check_loss(engine, parts, own)
