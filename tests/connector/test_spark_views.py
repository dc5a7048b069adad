"""The views through Spark: queues, topics and consumer offsets of real stores."""

from __future__ import annotations

import os

import pytest

from tests.connector.spark_rows import failure, rows
from tests.golden import archive


def test_queues(load, shop: str) -> None:
    frame = load(shop, view="queues")
    assert frame.columns == [
        "topic", "queueId", "minOffset", "maxOffset", "messages", "bytes", "firstStoreTimestamp", "lastStoreTimestamp",
    ]  # fmt: skip
    times: dict[tuple[str, int], list[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for line in archive.truth("shop-4.9.3"):
        queue = line["topic"], line["queueId"]
        times.setdefault(queue, []).append(line["storeTimestamp"])
        sizes[queue] = sizes.get(queue, 0) + line["size"]
    found = {(row["topic"], row["queueId"]): row for row in rows(frame)}
    for queue, seen in times.items():
        row = found[queue]
        assert (row["minOffset"], row["maxOffset"], row["messages"]) == (0, len(seen), len(seen))
        assert (row["firstStoreTimestamp"], row["lastStoreTimestamp"]) == (seen[0], seen[-1])
        assert row["bytes"] == sizes[queue]
    assert all(row["messages"] == 0 for queue, row in found.items() if queue not in times)


def test_a_view_takes_the_selection_it_has_columns_for(load, shop: str) -> None:
    assert {row.queueId for row in load(shop, view="queues", topic="orders").collect()} == {0, 1, 2, 3}
    chosen = load(shop, view="queues", assign='{"orders": [1]}', columns="maxOffset,topic").collect()
    assert [tuple(row) for row in chosen] == [(1506, "orders")]
    assert {row.topic for row in load(shop, view="queues", topicPattern="pay.*").collect()} == {"payments"}


def test_topics(load, shop: str) -> None:
    found = {row["topic"]: row for row in rows(load(shop, view="topics"))}
    kinds = {
        "orders": "normal",
        "%RETRY%mailer": "retry",
        "%DLQ%mailer": "dead letter",
        "SCHEDULE_TOPIC_XXXX": "delay",
        "RMQ_SYS_TRANS_HALF_TOPIC": "half",
        "TBW102": "system",
    }
    assert {topic: found[topic]["kind"] for topic in kinds if topic in found} == {
        topic: kind for topic, kind in kinds.items() if topic in found
    }
    assert {"orders", "payments", "shipments", "%RETRY%mailer", "%DLQ%mailer"} <= set(found)


def test_consumer_offsets(load, shop: str) -> None:
    found = {(row["group"], row["topic"], row["queueId"]): row for row in rows(load(shop, view="offsets"))}
    queries = [line for line in archive.queries("shop-4.9.3") if line["kind"] == "lag"]
    assert queries
    for line in queries:
        for queue in line["queues"]:
            row = found.get((line["group"], queue["topic"], queue["queueId"]))
            if row is None:
                assert queue["consumerOffset"] == 0
                continue
            assert (row["committed"], row["maxOffset"]) == (queue["consumerOffset"], queue["brokerOffset"])
            assert row["lag"] == queue["brokerOffset"] - queue["consumerOffset"]
    assert sum(row["lag"] for key, row in found.items() if key[0] == "shipping" and key[1] == "payments") == 1323


def test_a_view_of_several_stores_tells_the_store(load, golden, tmp_path) -> None:
    for name, source in (("a", golden("shop-4.9.3")), ("b", golden("delay-4.9.3"))):
        os.symlink(source, tmp_path / name)
    frame = load(str(tmp_path), view="queues")
    assert frame.columns[-1] == "store"
    assert {row.store for row in frame.collect()} == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingOffsets", "last:1"), ("startingTimestamp", "1"), ("layout", "kafka"), ("scan", "log")],
)
def test_a_view_refuses_other_options(load, shop: str, name: str, value: str) -> None:
    assert failure(lambda: load(shop, view="queues", **{name: value})).startswith(
        f"OptionError: option 'view' = 'queues': takes no option {name}; its columns are topic, queueId, minOffset,"
    )


def test_a_view_that_has_no_queue_ids_refuses_assign(load, shop: str) -> None:
    text = failure(lambda: load(shop, view="topics", assign='{"orders": [0]}'))
    assert text.startswith("OptionError: option 'view' = 'topics': takes no option assign; its columns are topic,")


def test_damage(load, shop: str, golden) -> None:
    assert load(shop, view="damage").count() == 0
    frame = load(golden("damaged-flipped-body-abort-4.9.3"), view="damage")
    assert frame.columns == ["file", "position", "length", "kind", "reason", "effect", "repairable", "queue"]
    first, second = frame.collect()
    assert (first.file, first.position, first.length) == ("commitlog/00000000000000016384", 936, 276)
    assert (first.kind, first.effect) == ("wrong checksum", "ends the log here and cuts all that follows")
    assert (second.kind, second.reason.split()[0]) == ("records after the end", "487")
