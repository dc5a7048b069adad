"""Every option of a batch read through Spark, on real stores."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.sql.functions import max as highest
from pyspark.sql.functions import min as lowest

from tests.connector.spark_rows import rows
from tests.golden import archive

QUEUES = {("orders", 0): 1498, ("orders", 1): 1506, ("orders", 2): 1504, ("orders", 3): 1497}
FLIPPED = "damaged-flipped-body-4.9.3"


def counts(frame) -> dict[tuple[str, int], int]:
    return {(row.topic, row.queueId): row["count"] for row in frame.groupBy("topic", "queueId").count().collect()}


def topics(frame) -> list[str]:
    return sorted(row.topic for row in frame.select("topic").distinct().collect())


def offsets(frame) -> dict[tuple[str, int], tuple[int, int]]:
    found = frame.groupBy("topic", "queueId").agg(
        lowest("queueOffset").alias("low"), highest("queueOffset").alias("high")
    )
    return {(row.topic, row.queueId): (row.low, row.high) for row in found.collect()}


def test_load_reads_everything(load, shop: str) -> None:
    assert load(shop).count() == 20048


@pytest.mark.parametrize("name", ["topic", "subscribe", "SUBSCRIBE"])
def test_topics(load, shop: str, name: str) -> None:
    assert counts(load(shop, **{name: "orders"})) == QUEUES
    assert topics(load(shop, **{name: '["payments", "orders"]'})) == ["orders", "payments"]


def test_topic_pattern(load, shop: str) -> None:
    assert topics(load(shop, topicPattern="(or|pay).*")) == ["orders", "payments"]
    assert topics(load(shop, subscribePattern=r"\Q%\E.*")) == ["%DLQ%mailer", "%RETRY%mailer"]
    assert load(shop, topicPattern="order").count() == 0


def test_assign(load, shop: str) -> None:
    found = counts(load(shop, assign='{"orders": [1, 3], "payments": [0]}'))
    assert found == {("orders", 1): 1506, ("orders", 3): 1497, ("payments", 0): 1326}


def test_offsets_in_json(load, shop: str) -> None:
    frame = load(
        shop,
        topic="orders",
        startingOffsets='{"orders": {"0": 10, "1": -2}}',
        endingOffsets='{"orders": {"0": 20, "2": 7, "3": -1}}',
    )
    assert offsets(frame) == {
        ("orders", 0): (10, 19),
        ("orders", 1): (0, 1505),
        ("orders", 2): (0, 6),
        ("orders", 3): (0, 1496),
    }


def test_the_last_messages_of_each_queue(load, shop: str) -> None:
    found = offsets(load(shop, topic="orders", startingOffsets="last:5"))
    assert found == {queue: (stop - 5, stop - 1) for queue, stop in QUEUES.items()}
    assert load(shop, topic="%DLQ%mailer", startingOffsets="last:100").count() == 16


def test_where_a_consumer_group_is(load, shop: str) -> None:
    lag = next(line for line in archive.queries("shop-4.9.3") if line["kind"] == "lag" and line["group"] == "shipping")
    expected = {
        (queue["topic"], queue["queueId"]): (queue["consumerOffset"], queue["brokerOffset"] - 1)
        for queue in lag["queues"]
    }
    assert offsets(load(shop, topic="payments", startingOffsets="group:shipping")) == expected
    done = offsets(load(shop, topic="payments", endingOffsets="group:shipping"))
    assert done == {queue: (0, first - 1) for queue, (first, _) in expected.items()}
    assert load(shop, topic="orders", startingOffsets="group:shipping").count() == 0, "no offset in this topic"


def test_times(load, shop: str) -> None:
    times = sorted(message["storeTimestamp"] for message in archive.truth("shop-4.9.3") if message["topic"] == "orders")
    start, stop = times[2000], times[4000]
    expected = sum(start <= each < stop for each in times)
    in_ms = load(shop, topic="orders", startingTimestamp=str(start), endingTimestamp=str(stop))
    assert in_ms.count() == expected
    iso = datetime.fromtimestamp(start / 1000, UTC).isoformat(timespec="milliseconds")
    assert load(shop, topic="orders", startingTimestamp=iso, endingTimestamp=str(stop)).count() == expected
    assert load(shop, endingTimestamp="-99999d").count() == 0


def test_columns_in_the_order_asked_for(load, shop: str) -> None:
    frame = load(shop, columns="body, topic,queueOffset", topic="payments")
    assert frame.columns == ["body", "topic", "queueOffset"]
    assert frame.where("queueOffset = 3").count() == 4


def test_a_users_schema_projects_and_casts(load, shop: str) -> None:
    frame = load(shop, schema="queueId long, body string, storeTimestamp timestamp_ntz", topic="orders")
    assert dict(frame.dtypes) == {"queueId": "bigint", "body": "string", "storeTimestamp": "timestamp_ntz"}
    assert frame.where("body like '{\"order\"%'").count() == sum(QUEUES.values())
    assert load(shop, schema="queueOffset long").count() == 20048


def test_min_partitions(load, shop: str) -> None:
    assert load(shop).rdd.getNumPartitions() == 1
    assert load(shop, minPartitions="5").rdd.getNumPartitions() >= 5


def test_max_records_and_bytes_per_partition(load, shop: str) -> None:
    frame = load(shop, maxRecordsPerPartition="3000", columns="topic,queueId,queueOffset")
    sizes = frame.rdd.mapPartitions(lambda found: [sum(1 for _ in found)]).collect()
    assert sum(sizes) == 20048
    assert max(sizes) <= 3000
    assert load(shop, maxBytesPerPartition="1m").rdd.getNumPartitions() >= 6
    assert load(shop, maxBytesPerPartition="1m").count() == 20048


def test_mode_dropmalformed(load, golden) -> None:
    assert load(golden(FLIPPED), mode="DROPMALFORMED").count() == 555
    assert load(golden(FLIPPED), mode="DROPMALFORMED", verifyCrc="false").count() == 556
    assert load(golden(FLIPPED), verifyCrc="false").count() == 556


def test_mode_permissive(load, golden) -> None:
    frame = load(golden(FLIPPED), mode="permissive")
    assert frame.columns[-1] == "corruption"
    assert frame.count() == 556
    (bad,) = frame.where("corruption is not null").collect()
    assert (bad.physicalOffset, bad.body) == (17320, None)
    assert "CRC" in bad.corruption


def test_decompress(load, golden) -> None:
    compressed = [line for line in archive.truth("mixed-4.9.3") if line["sysFlag"] & 1]
    stored = {line["physicalOffset"]: line["storedBodySize"] for line in compressed}
    frame = load(golden("mixed-4.9.3"), decompress="false", columns="physicalOffset,body,sysFlag")
    assert {row.physicalOffset: len(row.body) for row in frame.where("sysFlag & 1 = 1").collect()} == stored


def test_recovery(load, golden) -> None:
    killed = golden("broker-killed-4.9.3")
    assert load(killed, recovery="auto").count() == 5096
    assert load(killed, recovery="none").count() <= 5096
    assert load(killed, recovery="4.9").count() == 5096


def test_use_index_changes_no_row(load, golden) -> None:
    assert load(golden("collisions-4.9.3"), useIndex="false").count() == 160


def test_a_commit_log_elsewhere(load, golden, tmp_path) -> None:
    shutil.copytree(golden(FLIPPED), tmp_path / "store")
    os.rename(tmp_path / "store" / "commitlog", tmp_path / "elsewhere")
    found = load(str(tmp_path / "store"), commitLogPath=str(tmp_path / "elsewhere"), verifyCrc="false")
    assert found.count() == 556


def test_fail_on_data_loss_false_starts_at_what_is_there(load, golden) -> None:
    queue = archive.info("expired-4.9.3")["truth"]["queues"][0]
    start = f'{{"{queue["topic"]}": {{"{queue["queueId"]}": 0}}}}'
    kept = Counter((line["topic"], line["queueId"]) for line in archive.truth("expired-4.9.3"))
    frame = load(golden("expired-4.9.3"), topic=queue["topic"], startingOffsets=start, failOnDataLoss="false")
    assert counts(frame)[queue["topic"], queue["queueId"]] == kept[queue["topic"], queue["queueId"]]


@pytest.mark.parametrize("engine", ["auto", "RocketMQ"])
def test_engine(load, shop: str, engine: str) -> None:
    assert load(shop, engine=engine, schema="queueOffset long").count() == 20048


def test_several_stores_in_one_table(load, golden, shop: str, tmp_path) -> None:
    for name, source in (("a", golden(FLIPPED)), ("b", golden("delay-4.9.3"))):
        (tmp_path / name).mkdir()
        os.symlink(source, tmp_path / name / "store")
    expected = {"a/store": 556, "b/store": 150}
    for path in (str(tmp_path), str(tmp_path / "*" / "store"), [str(tmp_path / "a"), str(tmp_path / "b" / "store")]):
        frame = load(path, verifyCrc="false", minPartitions="4")
        assert {row.store: row["count"] for row in frame.groupBy("store").count().collect()} == expected
    assert {row.store for row in load(shop, columns="store").distinct().collect()} == {"store"}
    one = load(str(tmp_path), verifyCrc="false", assign='{"a/store": {"orders": [0]}}')
    assert {row.store for row in one.collect()} == {"a/store"}


def test_file_paths_and_views_in_sql(load, spark, shop: str) -> None:
    assert load(f"file:{shop}", schema="queueOffset long").count() == 20048
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shop_orders USING mqstore OPTIONS (path '{shop}', topic 'orders')")
    assert spark.sql("SELECT count(*) AS n FROM shop_orders WHERE queueId = 1").collect()[0].n == 1506


def test_the_kafka_layout(load, shop: str) -> None:
    frame = load(shop, layout="kafka", subscribe="orders", **{"kafka.bootstrap.servers": "nowhere:9092"})
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"),
    ]  # fmt: skip
    orders = [line for line in archive.truth("shop-4.9.3") if line["topic"] == "orders"]
    truth = {(line["queueId"], line["queueOffset"]): line for line in orders}
    found = rows(frame)
    assert len(found) == len(truth)
    for row in found:
        line = truth[row["partition"], row["offset"]]
        assert row["key"] == line["properties"]["KEYS"].encode()
        assert (row["topic"], row["timestamp"], row["timestampType"]) == ("orders", line["storeTimestamp"], 1)


def test_the_kafka_layout_with_headers(load, golden) -> None:
    frame = load(golden("mixed-4.9.3"), layout="kafka", includeHeaders="true")
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    truth = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in archive.truth("mixed-4.9.3")}
    found = rows(frame)
    assert len(found) == len(truth)
    for row in found:
        properties = truth[row["topic"], row["partition"], row["offset"]]["properties"]
        expected = {name: text.encode() for name, text in properties.items() if name != "KEYS"}
        assert {pair["key"]: pair["value"] for pair in row["headers"] or []} == expected
        assert (row["headers"] is None) == (not expected)
        assert row["key"] == (properties["KEYS"].encode() if "KEYS" in properties else None)


def test_an_empty_plan_has_no_rows(load, shop: str) -> None:
    assert load(shop, assign='{"orders": [0]}', endingOffsets='{"orders": {"0": 0}}').collect() == []
