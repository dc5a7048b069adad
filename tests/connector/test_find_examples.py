"""The examples of finding messages, on the shop's store, each compared with the truth."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from examples import consumer_lag, dead_letters, find_duplicates, find_one_order
from tests.golden import archive

NAME = "shop-4.9.3"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(archive.unpack(NAME, tmp_path_factory.mktemp("examples")))


def test_one_order_over_topics(spark: SparkSession, directory: str) -> None:
    rows = find_one_order.trace(spark, directory, "order-001178").collect()
    expected = [m for m in archive.truth(NAME) if "order-001178" in m["properties"].get("KEYS", "").split(" ")]
    assert Counter(row["topic"] for row in rows) == Counter(m["topic"] for m in expected)
    assert len({row["topic"] for row in rows}) > 2
    assert [row["storeTimestamp"] for row in rows] == sorted(row["storeTimestamp"] for row in rows)


def test_duplicates(spark: SparkSession, directory: str) -> None:
    counts = Counter((m["topic"], m["properties"].get("UNIQ_KEY", m["offsetMsgId"])) for m in archive.truth(NAME))
    rows = find_duplicates.duplicates(spark, directory).collect()
    assert {(row["topic"], row["msgId"]): row["copies"] for row in rows} == {k: n for k, n in counts.items() if n > 1}


def test_dead_letters(spark: SparkSession, directory: str) -> None:
    rows = dead_letters.dead_letters(spark, directory).collect()
    expected = [m for m in archive.truth(NAME) if m["topic"].startswith("%DLQ%")]
    assert sorted((r["group"], r["from"], r["key"]) for r in rows) == sorted(
        (m["topic"][5:], m["properties"]["RETRY_TOPIC"], m["properties"]["KEYS"]) for m in expected
    )
    assert rows


def test_lag(spark: SparkSession, directory: str) -> None:
    rows = consumer_lag.lag(spark, directory).collect()
    expected: Counter[tuple[str, str]] = Counter()
    for query in archive.queries(NAME):
        for queue in query["queues"] if query["kind"] == "lag" else ():
            expected[query["group"], queue["topic"]] += queue["brokerOffset"] - queue["consumerOffset"]
    found = {(row["group"], row["topic"]): row["lag"] for row in rows}
    assert expected
    assert {key: found[key] for key in expected} == {key: expected[key] for key in expected}
    (group, topic), lag = max(expected.items(), key=lambda each: each[1])
    assert consumer_lag.unread(spark, directory, group, topic).count() == lag
