"""Stream options that only RocketMQ has: start at a group's offsets, filter by key, id and tag, topics that appear."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import DataLossError, OptionError
from storage_core.store import ScanRequest
from tests.contract.rocketmq_engine import RocketEngine
from tests.golden.archive import unpack
from tests.support.stream_query import Query

LOST = "damaged-queues-lost-4.9.3"
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


@pytest.mark.parametrize("options", [{"topic": "orders,other"}, {"assign": '{"orders": [0], "other": [0]}'}])
def test_a_topic_outside_the_group_of_the_start_is_named(root: Path, options: dict[str, str], capsys) -> None:
    append(root, 100, 5, "other")
    RocketEngine().commit_group(root, "billing", {"orders": 20})
    query = started(root, startingOffsets="group:billing")
    query.run()
    query.options.update(options)
    append(root, 24, 3)
    query.start()
    capsys.readouterr()
    query.run()
    assert bodies(query) == list(range(20, 27))
    assert capsys.readouterr().err == (
        f"mqstore: {root}: topic other is not read, because this query began at the offsets of a consumer group, which "
        "had none in it (it had some in orders); read other by a query with a checkpointLocation of its own\n"
    )


def test_topics_that_appear_later_are_read_from_their_first_message(root: Path) -> None:
    query = started(root, topicPattern="orders.*", startingOffsets="latest")
    query.run()
    append(root, 300, 4, "orders-eu")
    append(root, 400, 4, "refunds")
    append(root, 24, 2)
    query.run()
    assert sorted(bodies(query)) == [24, 25, 300, 301, 302, 303]


def test_a_new_queue_that_lost_messages_before_its_batch_was_planned_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    body = "x" * 500
    write(root, "orders", [body] * 5)
    query = Query(root, {"columns": "topic,queueOffset", "maxOffsetsPerTrigger": "50"})
    query.start()
    query.run()
    write(root, "payments", [body] * 100)
    query.trigger(dies=lambda: True)
    min((root / "commitlog").iterdir()).unlink()
    query.start()
    with pytest.raises(DataLossError, match=r"payments/0 begins at \d+ now, the checkpoint is at 0"):
        query.run()


def test_a_new_queue_that_began_after_0_is_planned_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, "orders", ["x" * 500] * 5)
    query = Query(root, {"columns": "topic,queueOffset", "maxOffsetsPerTrigger": "50"})
    query.start()
    query.run()
    write(root, "payments", ["x" * 500] * 100)
    min((root / "commitlog").iterdir()).unlink()
    query.options["failOnDataLoss"] = "false"
    query.trigger(dies=lambda: True)
    first = query.offsets[-1]["first"]["payments"]["0"]
    assert first > 0
    query.start()
    query.run()
    assert [row["queueOffset"] for table in query.tables[1:] for row in table.to_pylist()] == list(range(first, 100))
    assert "first" not in query.offsets[-1]


@pytest.mark.parametrize(
    ("name", "engine"),
    [("stopped-5.3.3", "rocketmq/batched"), ("killed-5.3.3", "rocketmq/batched"), (LOST, "rocketmq")],
)
def test_bytes_limit_batch_queues_and_queues_that_only_the_log_has(tmp_path: Path, name: str, engine: str) -> None:
    root = unpack(name, tmp_path, engine)
    query = Query(root, {"columns": "topic,queueId,queueOffset", "maxBytesPerTrigger": "20000"})
    query.start()
    query.run()
    assert query.tables[0].num_rows < 120
    assert len(query.tables) > 5
    found = sorted(tuple(row.values()) for table in query.tables for row in table.to_pylist())
    with open_store(str(root)) as store:
        request = ScanRequest(columns=("topic", "queueId", "queueOffset"))
        assert found == sorted(
            tuple(row.values()) for batch in store.snapshot().read(request) for row in batch.to_pylist()
        )


def write(root: Path, topic: str, bodies: list[str]) -> None:
    with open_store(str(root), "rocketmq", commitLogFileSize=1 << 14, consumeQueueFileEntries=20) as store:
        store.append(
            {"topic": [topic] * len(bodies), "body": bodies, "queueId": pa.array([0] * len(bodies), pa.int32())}
        )


def test_a_restart_with_fewer_topics_keeps_its_place_in_the_others(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, "orders", ["a"] * 5)
    write(root, "payments", ["b"] * 4)
    query = Query(root, {"columns": "topic,queueOffset", "topic": "orders,payments"})
    for topics, count in (("orders,payments", 9), ("payments", 0), ("orders", 0), ("orders,payments", 0)):
        query.options["topic"] = topics
        query.start()
        before = sum(table.num_rows for table in query.tables)
        query.run()
        assert sum(table.num_rows for table in query.tables) - before == count, topics
    query.options["topic"] = "payments"
    query.start()
    write(root, "orders", ["c"] * 2)
    write(root, "payments", ["d"] * 3)
    query.run()
    query.options["topic"] = "orders,payments"
    query.start()
    query.run()
    rows = [tuple(row.values()) for table in query.tables for row in table.to_pylist()]
    assert sorted(rows) == [*(("orders", n) for n in range(7)), *(("payments", n) for n in range(7))]


def test_a_batch_planned_before_a_restart_with_fewer_topics_keeps_its_rows(tmp_path: Path) -> None:
    """Its end is recorded for all topics, so rows that it left out would never be read."""
    root = tmp_path / "store"
    write(root, "orders", ["a"] * 5)
    query = Query(root, {"columns": "topic,queueOffset"})
    query.start()
    query.run()
    write(root, "orders", ["b"] * 3)
    write(root, "payments", ["c"] * 2)
    query.trigger(dies=lambda: True)
    query.options["topic"] = "orders"
    query.start()
    query.run()
    del query.options["topic"]
    query.start()
    query.run()
    rows = [tuple(row.values()) for table in query.tables for row in table.to_pylist()]
    assert sorted(rows) == [*(("orders", n) for n in range(8)), ("payments", 0), ("payments", 1)]


def test_a_queue_that_does_not_exist_yet_is_named_and_read_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    write(root, "orders", ["a"] * 2)
    query = Query(root, {"columns": "topic,queueOffset", "assign": '{"orders": [1]}'})
    query.start()
    query.run()
    warned = capfd.readouterr().err
    assert warned == f"mqstore: {root}: there is no queue orders/1 yet; the topic's queues are 0\n"
    with open_store(str(root)) as store:
        store.append(pa.table({"topic": ["orders"], "body": [b"b"], "queueId": pa.array([1], pa.int32())}))
    query.run()
    rows = [tuple(row.values()) for table in query.tables for row in table.to_pylist()]
    assert rows == [("orders", 0)]
