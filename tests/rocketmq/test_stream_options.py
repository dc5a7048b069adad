"""Stream options that only RocketMQ has: start at a group's offsets, filter by key, id and tag, topics that appear."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OptionError
from tests.contract.rocketmq_engine import RocketEngine
from tests.support.stream_query import Query

PAIRS = pa.map_(pa.string(), pa.string())


def append(root: Path, first: int, count: int, topic: str = "orders") -> None:
    numbers = range(first, first + count)
    rows = {
        "topic": [topic] * count,
        "queueId": pa.array([0] * count, pa.int32()),
        "key": [f"k{number % 4}" for number in numbers],
        "tags": ["paid" if number % 3 == 0 else "sent" for number in numbers],
        "body": [str(number) for number in numbers],
        "properties": pa.array([[("UNIQ_KEY", f"ID{number}")] for number in numbers], PAIRS),
    }
    with open_store(str(root), "rocketmq", commitLogFileSize=1 << 14) as store:
        store.append(pa.table(rows))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    append(tmp_path / "store", 0, 24)
    return tmp_path / "store"


def started(root: Path, **options: str) -> Query:
    query = Query(root, {"columns": "topic,body", "maxOffsetsPerTrigger": "10", **options})
    query.start()
    return query


def bodies(query: Query) -> list[int]:
    return [int(body) for table in query.tables for body in table["body"].to_pylist()]


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"key": "k1"}, lambda number: number % 4 == 1),
        ({"tag": "paid"}, lambda number: number % 3 == 0),
        ({"msgId": '["ID5", "ID30", "ID99"]'}, lambda number: number in (5, 30)),
        ({"key": "k2", "tag": "paid || none"}, lambda number: number % 4 == 2 and number % 3 == 0),
    ],
)
def test_a_filter_leaves_its_rows_of_every_batch(root: Path, options: dict[str, str], taken) -> None:
    query = started(root, **options)
    query.run()
    assert len(query.tables) == 3, "limits count messages, not rows that a filter leaves"
    append(root, 24, 20)
    query.start()
    query.run()
    assert bodies(query) == [number for number in range(44) if taken(number)]


def test_a_stream_starts_where_a_group_is_and_stays_with_its_topics(root: Path) -> None:
    append(root, 100, 5, "other")
    RocketEngine().commit_group(root, "billing", {"orders": 20})
    query = started(root, startingOffsets="group:billing")
    query.run()
    append(root, 24, 3)
    append(root, 105, 5, "other")
    append(root, 200, 5, "new")
    query.start()
    query.run()
    assert bodies(query) == list(range(20, 27))
    assert query.offsets[-1]["topics"] == ["orders"]
    with pytest.raises(OptionError, match="billing"):
        started(root, startingOffsets="group:bilings").trigger()


def test_topics_that_appear_later_are_read_from_their_first_message(root: Path) -> None:
    query = started(root, topicPattern="orders.*", startingOffsets="latest")
    query.run()
    append(root, 300, 4, "orders-eu")
    append(root, 400, 4, "refunds")
    append(root, 24, 2)
    query.run()
    assert sorted(bodies(query)) == [24, 25, 300, 301, 302, 303]
