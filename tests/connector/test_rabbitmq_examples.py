"""The examples that move RabbitMQ's messages elsewhere: what arrives, and that losses are counted correctly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import rabbitmq_to_kafka_layout, rabbitmq_to_rocketmq
from tests.rabbitmq import golden

NAME = "s1_mixed_clean_idle"


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(golden.unpack(NAME, tmp_path / "rabbit") / golden.DEFAULT_VHOST)


def test_to_rocketmq(spark, load, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "store")
    lost = rabbitmq_to_rocketmq.run(spark, source, target)
    old = load(source).collect()
    filled = [row for row in old if row.body]
    assert lost["rows"] == len(old)
    assert lost["empty bodies, not written"] == len(old) - len(filled)
    assert lost["priorities that no longer order"] == sum((row.priority or 0) > 0 for row in old) > 0
    assert lost["expirations that nothing will enforce"] == sum(row.expiresAt is not None for row in old) > 0
    assert lost["redelivered flags"] == sum(row.redelivered for row in old)
    assert lost["headers without a value"] == sum(
        1 for row in old for value in (row.headers or {}).values() if not value
    )
    new: dict[str, list] = {}
    for row in load(target).orderBy("topic", "queueOffset").collect():
        new.setdefault(row.topic, []).append(row)
    wanted: dict[str, list] = {}
    for row in filled:
        topic = "".join(c if c.isascii() and (c.isalnum() or c in "%|_-") else "_" for c in row.queue)
        wanted.setdefault(topic, []).append(row)
    assert {name: [bytes(row.body) for row in rows] for name, rows in new.items()} == {
        name: [bytes(row.body) for row in rows] for name, rows in wanted.items()
    }
    checked = 0
    for topic, rows in wanted.items():
        for was, now in zip(rows, new[topic], strict=True):
            assert (now.key, now.tags) == (was.messageId or None, was.type or None)
            assert json.loads(now.properties["amqp.routingKeys"]) == was.routingKeys
            assert now.properties.get("amqp.correlationId") == (was.correlationId or None)
            headers = {name: value for name, value in (was.headers or {}).items() if value}
            kept = {k.removeprefix("header."): v for k, v in now.properties.items() if k.startswith("header.")}
            assert kept == headers
            checked += len(headers)
    assert checked > 10


def test_two_queues_never_share_a_topic(spark, load, source: str) -> None:
    frame = spark.createDataFrame([("a.b",), ("a b",)], "queue string")
    with pytest.raises(
        ValueError, match=r"the queues \['a b', 'a.b'\] would share the topic a_b; move them one by one"
    ):
        rabbitmq_to_rocketmq.what_is_lost(frame)


def test_to_kafkas_columns(spark, load, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "messages.parquet")
    lost = rabbitmq_to_kafka_layout.run(spark, source, target)
    old = load(source).collect()
    found = spark.read.parquet(target).collect()
    assert sorted((row.topic, row.offset, bytes(row.value)) for row in found) == sorted(
        (row.queue, row.sequenceId, bytes(row.body)) for row in old
    )
    assert lost["rows"] == len(old)
    for name in ("messageId", "priority", "contentType", "expiresAt"):
        assert lost[name] == sum(row[name] is not None for row in old) > 0
    assert lost["further routing keys"] == sum(max(len(row.routingKeys) - 1, 0) for row in old)
    assert lost["offsets that repeat"] == len(old) - len({(row.queue, row.sequenceId) for row in old}) > 0
