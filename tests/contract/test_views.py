"""Views: tables about a store, which have their own schemas, accept a selection and change nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OptionError
from storage_core.store import ScanRequest, Store
from tests.contract.engine import Engine, Seen
from tests.contract.messages import COUNTS


def rows_of(opened: Store, view: str, request: ScanRequest | None = None) -> list[dict[str, object]]:
    return pa.Table.from_batches(opened.view(view, request), opened.view_schema(view)).to_pylist()


def test_a_view_has_rows_of_its_schema(engine: Engine, store: Path) -> None:
    rows = {}
    with open_store(str(store)) as opened:
        for view in engine.views:
            schema = opened.view_schema(view)
            assert len(set(schema.names)) == len(schema.names) > 0
            rows[view] = 0
            for batch in opened.view(view):
                assert batch.schema.equals(schema, check_metadata=True), view
                batch.validate(full=True)
                rows[view] += batch.num_rows
    assert rows["queues"] == len(COUNTS)
    assert rows["segments"]


@pytest.mark.parametrize("ask", ["view", "view_schema"])
def test_an_unknown_view_names_close_ones(engine: Engine, store: Path, ask: str) -> None:
    with open_store(str(store)) as opened, pytest.raises(OptionError, match=r"\bsegments\b") as caught:
        list(opened.view("segmnts")) if ask == "view" else opened.view_schema("segmnts")
    assert (caught.value.name, caught.value.value) == ("view", "segmnts")
    for view in engine.views:
        assert view in str(caught.value), "and all that are there"


def test_the_queues_view_is_what_queues_says(engine: Engine, own: Path) -> None:
    engine.lose_first(own, "alpha")
    with open_store(str(own)) as opened:
        found = [
            (row[engine.queue_column], row["minOffset"], row["maxOffset"], row["messages"])
            for row in rows_of(opened, "queues")
        ]
        ranges = [(queue.topic, queue.start, queue.stop) for queue in opened.queues()]
    assert [row[:3] for row in found] == ranges
    rows = engine.rows(own)
    assert [row[3] for row in found] == [len([row for row in rows if row[0] == name]) for name, _, _ in ranges]


def test_a_view_takes_a_selection_of_queues(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        for fields in ({"topics": ("alpha",)}, {"topic_pattern": "al.*"}, {"assign": (("alpha", 0),)}):
            rows = rows_of(opened, "queues", ScanRequest(**fields))
            assert [row[engine.queue_column] for row in rows] == ["alpha"], fields


def test_a_view_of_a_queue_that_is_not_there_names_close_ones(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened, pytest.raises(OptionError, match=r"\balpha\b") as caught:
        rows_of(opened, "queues", ScanRequest(topics=("alpah",)))
    assert caught.value.value == "alpah"


def test_segments_are_files_that_hold_all_messages(engine: Engine, store: Path, everything: list[Seen]) -> None:
    with open_store(str(store)) as opened:
        rows = rows_of(opened, "segments")
    files = {str(row["file"]): row for row in rows}
    for name, row in files.items():
        path = Path(name) if name.startswith("/") else store / name
        assert path.is_file(), name
        assert row["bytes"] in (None, path.stat().st_size), name
    assert sum(row["messages"] or 0 for row in rows) >= len(everything)


def test_a_store_without_a_damage_lists_none(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        if "damage" in engine.views:
            assert rows_of(opened, "damage") == []
        else:
            with pytest.raises(OptionError):
                opened.view_schema("damage")


def test_views_name_their_store(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        for view in engine.views:
            if "store" in opened.view_schema(view).names:
                rows = rows_of(opened, view, ScanRequest(store_name="a/b"))
                assert {row["store"] for row in rows} <= {"a/b"}
        assert len(rows_of(opened, "queues")) == len(COUNTS)
