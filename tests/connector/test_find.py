"""Finding messages through Spark: options, pushed filters and `read`, compared with a full read filtered in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from pyspark_mqstore import read
from storage_core.errors import OptionError
from tests.connector.spark_rows import failure
from tests.golden import archive
from tests.support.rocketmq_orders import orders_store, record_size

NAME = "mixed-4.9.3"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SHOWN = ("topic", "queueId", "queueOffset", "physicalOffset", "key", "tags", "msgId", "bornTimestamp", "storeTimestamp")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(archive.unpack(NAME, tmp_path_factory.mktemp("find")))


@pytest.fixture(scope="module")
def everything(spark: SparkSession, directory: str) -> list[dict[str, Any]]:
    frame = spark.read.format("mqstore").option("mode", "DROPMALFORMED").load(directory)
    return [row.asDict() for row in frame.select(*SHOWN, "keys").collect()]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def found(frame: DataFrame) -> list[Row]:
    return sorted((tuple(row) for row in frame.select(*SHOWN).collect()), key=repr)


def expected(rows: list[dict[str, Any]], condition: Callable[[dict[str, Any]], bool]) -> list[Row]:
    return sorted((tuple(row[name] for name in SHOWN) for row in rows if condition(row)), key=repr)


def load(spark: SparkSession, directory: str, **options: str) -> DataFrame:
    return spark.read.format("mqstore").options(mode="DROPMALFORMED", **options).load(directory)


def test_key_id_and_tag(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    keyed = random.Random(1).choice([row for row in everything if row["keys"]])
    word = keyed["keys"][-1]
    assert found(load(spark, directory, key=word)) == expected(everything, lambda r: word in (r["keys"] or ()))
    words = sorted({word for row in everything for word in row["keys"] or ()})[:30]
    listed = '["' + '", "'.join(words) + '"]'
    several = expected(everything, lambda r: bool(set(words) & set(r["keys"] or ())))
    assert found(load(spark, directory, KEY=listed)) == several
    message_id = keyed["msgId"]
    assert found(load(spark, directory, msgId=message_id)) == expected(everything, lambda r: r["msgId"] == message_id)
    tags = sorted({row["tags"] for row in everything if row["tags"]})[:2]
    assert found(load(spark, directory, tag=" || ".join(tags))) == expected(everything, lambda r: r["tags"] in tags)
    assert found(load(spark, directory, tag="*")) == expected(everything, lambda r: True)


def test_options_combine(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    row = random.Random(2).choice([row for row in everything if row["keys"] and row["tags"]])
    word, topic, tag = row["keys"][0], row["topic"], row["tags"]
    got = found(load(spark, directory, key=word, topic=topic, tag=tag))
    assert got == expected(everything, lambda r: word in (r["keys"] or ()) and r["topic"] == topic and r["tags"] == tag)
    assert got


CONDITIONS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "equal": ("topic = 'orders'", lambda r: r["topic"] == "orders"),
    "safely equal": ("tags <=> 'TagA'", lambda r: r["tags"] == "TagA"),
    "safely null": ("tags <=> null", lambda r: r["tags"] is None),
    "not safely equal": ("not (tags <=> 'TagA')", lambda r: r["tags"] != "TagA"),
    "in": ("queueId in (0, 2)", lambda r: r["queueId"] in (0, 2)),
    "not in": ("queueId not in (0, 2)", lambda r: r["queueId"] not in (0, 2)),
    "not in with null": ("tags not in ('TagA', null)", lambda r: False),
    "range": ("queueOffset >= 3 and queueOffset < 9", lambda r: 3 <= r["queueOffset"] < 9),
    "not range": ("not (queueOffset >= 3)", lambda r: r["queueOffset"] < 3),
    "null": ("key is null", lambda r: r["key"] is None),
    "not null": ("key is not null", lambda r: r["key"] is not None),
    "like": ("key like 'user%'", lambda r: (r["key"] or "").startswith("user")),
    "not like": ("key not like 'user%'", lambda r: r["key"] is not None and not r["key"].startswith("user")),
    "place": ("physicalOffset > 60000", lambda r: r["physicalOffset"] > 60000),
    "or": ("queueId = 1 or tags = 'TagA'", lambda r: r["queueId"] == 1 or r["tags"] == "TagA"),
    "both": ("topic like 'o%' and tags is not null", lambda r: r["topic"].startswith("o") and r["tags"] is not None),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.usefixtures("pushing")
def test_pushed_filters(spark: SparkSession, directory: str, everything: list[dict[str, Any]], name: str) -> None:
    text, condition = CONDITIONS[name]
    assert found(load(spark, directory, pushdown="true").where(text)) == expected(everything, condition)


@pytest.mark.usefixtures("pushing")
def test_pushed_times_keys_and_ids(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    times = sorted(row["storeTimestamp"] for row in everything)
    middle = times[len(times) // 2]
    frame = load(spark, directory, pushdown="true").where(col("storeTimestamp") >= lit(middle))
    assert found(frame) == expected(everything, lambda r: r["storeTimestamp"] >= middle)
    for column in ("key", "msgId"):
        value = random.Random(3).choice([row[column] for row in everything if row[column]])
        frame = load(spark, directory, pushdown="true").where(col(column) == value)
        assert found(frame) == expected(everything, lambda r, c=column, v=value: r[c] == v)


@pytest.mark.usefixtures("pushing")
def test_without_the_option_nothing_is_pushed(spark: SparkSession, directory: str) -> None:
    frame = load(spark, directory)
    assert frame.where("topic = 'orders'").count() < frame.count() == load(spark, directory).count()


def test_read_equals_load(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    assert found(read(spark, directory, mode="DROPMALFORMED")) == expected(everything, lambda r: True)
    whole = read(spark, directory, columns=["queueOffset", "topic"], topic="orders", mode="DROPMALFORMED")
    assert whole.columns == ["queueOffset", "topic"]
    assert {row["topic"] for row in whole.collect()} == {"orders"}


def test_read_with_filters(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    row = random.Random(4).choice([row for row in everything if row["keys"] and len(row["keys"]) > 1])
    word, at = row["keys"][1], row["storeTimestamp"]
    queries: list[tuple[Any, Callable[[dict[str, Any]], bool]]] = [
        ([("keys", "contains", word)], lambda r: word in (r["keys"] or ())),
        ([("key", "=", row["key"]), ("topic", "==", row["topic"])],
         lambda r: (r["key"], r["topic"]) == (row["key"], row["topic"])),
        ([[("keys", "contains", word)], [("queueId", "in", [0]), ("tags", "is null")]],
         lambda r: word in (r["keys"] or ()) or (r["queueId"] == 0 and r["tags"] is None)),
        ([("storeTimestamp", ">", at.replace(tzinfo=UTC))], lambda r: r["storeTimestamp"] > at),
        ([("storeTimestamp", "<=", at.isoformat())], lambda r: r["storeTimestamp"] <= at),
        ([("tags", "!=", None), ("tags", "not in", ["TagA"])], lambda r: r["tags"] not in (None, "TagA")),
        ([("body", "!=", b"x"), ("queueOffset", "<", 2)], lambda r: r["queueOffset"] < 2),
    ]  # fmt: skip
    for filters, condition in queries:
        frame = read(spark, directory, filters=filters, mode="DROPMALFORMED")
        assert found(frame) == expected(everything, condition), filters
        assert frame.count() == len(expected(everything, condition))


def test_one_frame_used_many_times(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    frame = read(spark, directory, mode="DROPMALFORMED", minPartitions=3)
    few = frame.where("queueId = 0")
    some = sum(row["queueId"] == 0 for row in everything)
    assert few.count() == some
    assert frame.count() == len(everything)
    assert few.union(frame.where("queueId = 1")).count() == sum(row["queueId"] in (0, 1) for row in everything)
    joined = frame.alias("a").join(frame.alias("b"), on=["topic", "queueId", "queueOffset"])
    assert joined.count() == len(everything)
    assert frame.coalesce(1).count() == frame.repartition(5).count() == len(everything)
    assert len(frame.limit(4).collect()) == 4


def test_a_join_does_not_broadcast_it(spark: SparkSession, tmp_path: Path) -> None:
    """Spark is told the real size in bytes: a plain range of three ids would be broadcast in every join."""
    directory = str(archive.unpack("shop-4.9.3", tmp_path))
    frame = read(spark, directory, columns=["msgId", "body"])
    joined = frame.join(frame.withColumnRenamed("body", "other"), on="msgId")
    size = int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    assert size > 2 << 20
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", str(1 << 20))
    try:
        assert "BroadcastHashJoin" not in joined._jdf.queryExecution().executedPlan().toString()
        assert joined.count() >= frame.count()
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize("columns", [None, ["queueOffset"], ["topic", "keys", "properties", "body"]])
def test_spark_believes_in_as_many_bytes_as_are_read(
    spark: SparkSession, tmp_path: Path, columns: list[str] | None
) -> None:
    directory = orders_store(tmp_path / "store", 30_000)
    frame = read(spark, str(directory), columns=columns, minPartitions=3)
    believed = int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    assert abs(believed - 30_000 * record_size(directory)) < 4096
    assert frame.count() == 30_000


def test_adaptive_execution_does_not_broadcast_it_either(spark: SparkSession, tmp_path: Path) -> None:
    """A join that knows the runtime sizes still does not broadcast a side that is larger than the threshold."""
    directory = orders_store(tmp_path / "store", 20_000)
    frame = read(spark, str(directory), columns=["msgId", "body"])
    joined = frame.join(frame.withColumnRenamed("body", "other"), on="msgId")
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", str(64 << 10))
    try:
        assert len(joined.collect()) == 20_000
        final = joined._jdf.queryExecution().executedPlan().toString()
        assert "isFinalPlan=true" in final
        assert "BroadcastHashJoin" not in final
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.fixture(scope="module")
def torn_last(tmp_path_factory: pytest.TempPathFactory) -> str:
    """80,000 messages, the last of them damaged: only a read to the end notices."""
    directory = orders_store(tmp_path_factory.mktemp("early") / "store", 80_000)
    with next((directory / "commitlog").iterdir()).open("r+b") as file:
        file.seek(79_999 * record_size(directory) + 120)
        file.write(b"!!")
    return str(directory)


@pytest.mark.parametrize("way", ["read", "load"])
def test_limit_and_show_stop_early(
    spark: SparkSession, torn_last: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"minPartitions": "1", "recovery": "none"}
    if way == "read":
        frame = read(spark, torn_last, columns=["key", "body"], **options)
    else:
        frame = spark.read.format("mqstore").options(columns="key,body", **options).load(torn_last)
    assert len(frame.limit(5).collect()) == 5
    assert len(frame.take(7)) == 7
    frame.show(3)
    assert capsys.readouterr().out.count("ORD-") == 3
    with pytest.raises(PySparkException, match="CorruptionError"):
        frame.collect()


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("key", '["a"', "option 'key' = '[\"a\"': is not JSON"),
        ("key", "[]", "names nothing"),
        ("key", "", "is empty"),
        ("msgId", '["A", 1]', "must be a JSON list of texts"),
        ("msgId", "7F00000100002A9F00000000000000", "has 30 hex digits; a message id has 32, or 56 with IPv6"),
        ("tag", "A | B", "must be one tag, several as A || B, or * for everything"),
        ("startingTimestamp", "yesterday", "option 'startingTimestamp' = 'yesterday'"),
        ("endingTimestamp", "-5", "option 'endingTimestamp' = '-5'"),
    ],
)
def test_wrong_lookups_are_one_line(spark: SparkSession, directory: str, option: str, value: str, text: str) -> None:
    assert text in failure(lambda: load(spark, directory, **{option: value}).count())
    with pytest.raises(OptionError) as caught:
        read(spark, directory, **{option: value})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ([("nope", "=", 1)], "there is no column nope; the columns are"),
        ([("tag", "=", "A")], "there is no column tag; did you mean tags?"),
        ([("topic", "~", "a")], "there is no operator '~'; there are ="),
        ([("topic", "=")], "has no value; only is null and is not null take none"),
        ([("topic", "=", 1)], "the column is text, 1 is not"),
        ([("topic", "=", "\udcff")], "'\\udcff' is no Unicode text"),
        ([("queueId", "in", "01")], "in takes a list of values"),
        ([("queueOffset", ">", "x")], "the column holds whole numbers of 64 bits, 'x' is not one"),
        ([("storeTimestamp", ">", "yesterday")], "'yesterday' is not an ISO 8601 time such as"),
        ([("properties", "=", {})], "this column can only be filtered with where(...)"),
        ([("keys", "=", "k")], "a list can only be searched for a word"),
        ([], "must be a list of triples such as"),
        ("topic = 'a'", "must be a list of triples such as"),
        ([("topic",)], "must be a list of triples such as"),
    ],
)
def test_wrong_filters(spark: SparkSession, directory: str, filters: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(spark, directory, filters=filters)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_options_of_read(spark: SparkSession, directory: str) -> None:
    with pytest.raises(OptionError, match="there is no such option"):
        read(spark, directory, toppic="a")
    with pytest.raises(OptionError, match="go with messages in layout=native"):
        read(spark, directory, filters=[("topic", "=", "a")], view="queues")
    with pytest.raises(OptionError, match="there is no column nope"):
        read(spark, directory, columns=["nope"])
    with pytest.raises(OptionError, match="names the column topic twice"):
        read(spark, directory, columns=["topic", "topic"])
    with pytest.raises(OptionError, match="'columns' = '\\[\\]': names nothing"):
        read(spark, directory, columns=[])


def test_time_options(spark: SparkSession, directory: str, everything: list[dict[str, Any]]) -> None:
    times = sorted(row["storeTimestamp"] for row in everything)
    if times == [row["storeTimestamp"] for row in sorted(everything, key=lambda r: r["physicalOffset"])]:
        at = times[len(times) // 3] + timedelta(milliseconds=0)
        ms = int((at.replace(tzinfo=UTC) - EPOCH).total_seconds() * 1000)
        later = expected(everything, lambda r: r["storeTimestamp"] >= at)
        assert found(load(spark, directory, startingTimestamp=str(ms))) == later
        earlier = expected(everything, lambda r: r["storeTimestamp"] < at)
        assert found(load(spark, directory, endingTimestamp=str(ms))) == earlier
