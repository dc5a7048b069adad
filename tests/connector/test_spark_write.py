"""Writing from Spark: native and Kafka's names, several tasks, retries, bad rows and jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden import archive
from tests.rocketmq.test_preserve import contents, write_options

SMALL = {"commitLogFileSize": "65536", "consumeQueueFileEntries": "50", "indexSlots": "51", "indexEntries": "200"}


def rows(spark, count: int, tasks: int = 3) -> Any:
    return spark.range(0, count, 1, tasks).selectExpr(
        "concat('body ', id) as body", "concat('k', id, ' all') as key", "'orders' as topic",
        "if(id % 2 = 0, 'paid', null) as tags",
    )  # fmt: skip


def save(frame, path: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("mqstore").mode(mode).options(**options).save(str(path))


def failure(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes
        call()
    return str(caught.value)


def test_rows_of_several_tasks_in_a_new_store_and_again(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(rows(spark, 1000), path, **SMALL)
    save(rows(spark, 10).drop("key"), path)
    got = load(str(path)).orderBy("physicalOffset").collect()
    assert len(got) == 1010
    assert {row.topic for row in got} == {"orders"}
    assert [row.body.decode() for row in got] == [f"body {i}" for i in [*range(1000), *range(10)]]
    assert [row.key for row in got[:2]] == ["k0 all", "k1 all"]
    assert [row.tags for row in got[:2]] == ["paid", None]
    assert load(str(path), key="k7").count() == 1
    assert len({row.storeTimestamp for row in got}) == 2
    assert sorted(each.name for each in (path / ".mqstore").iterdir()) == ["lock", "state.json"]


def test_kafka_columns(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    frame = spark.range(20).selectExpr(
        "cast(concat('k', id) as binary) as key", "cast(concat('v', id) as binary) as value", "'t' as topic",
        "cast(id % 3 as int) as partition", "id as offset", "timestamp_millis(1700000000000 + id) as timestamp",
        "0 as timestampType", "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers",
    )  # fmt: skip
    save(frame, path, **SMALL)
    got = load(str(path), layout="kafka", includeHeaders="true").collect()
    assert {(row.key, row.value, row.partition) for row in got} == {
        (f"k{i}".encode(), f"v{i}".encode(), i % 3) for i in range(20)
    }
    assert got[0].headers[0].key == "h"
    assert load(str(path)).selectExpr("min(unix_millis(bornTimestamp)) as t").collect()[0].t == 1700000000000


@pytest.mark.parametrize("name", ["mixed-5.3.3", "delay-4.9.3"])
def test_preserve_through_spark(spark, load, golden, name: str, tmp_path: Path) -> None:
    source = golden(name)
    options = {key: str(value) for key, value in write_options(archive.info(name)["settings"]).items()}
    frame = load(source, scan="log", decompress="false", minPartitions="4")
    save(frame, tmp_path / "copy", preserve="true", **options)
    for kind in ("commitlog", "consumequeue", "index"):
        assert contents(tmp_path / "copy", kind) == [each for each in contents(Path(source), kind) if each[1]]


def test_bad_rows_and_jobs_are_one_line_and_change_nothing(spark, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(rows(spark, 10), path, **SMALL)
    before = archive.fingerprint(path)
    base = rows(spark, 50)
    cases = {
        "overwrite": lambda: save(base, path, "overwrite"),
        "'topc'": lambda: save(base.withColumnRenamed("topic", "topc"), path),
        "null": lambda: save(base.selectExpr("topic", "if(body = 'body 30', null, body) as body"), path),
        "empty": lambda: save(base.selectExpr("topic", "if(body = 'body 30', '', body) as body"), path),
        "127": lambda: save(base.selectExpr("repeat('x', 128) as topic", "body"), path),
        "'a/b'": lambda: save(base.selectExpr("'a/b' as topic", "body"), path),
        "0x01": lambda: save(base.selectExpr("topic", "body", "map('a', 'b\\u0001c') as properties"), path),
        "the limit is": lambda: save(base.selectExpr("topic", "repeat('x', 70000) as body"), path),
        "'colour'": lambda: save(base, path, colour="red"),
    }
    for words, call in cases.items():
        text = failure(call)
        lines = [line for line in text.splitlines() if "mqstore" in line and words in line]
        assert lines, f"{words} in {text}"
        assert "Traceback" not in text, words
        after = archive.fingerprint(path)
        assert {n: f[1:] for n, f in after.items()} == {n: f[1:] for n, f in before.items()}, words


def test_an_empty_frame_writes_nothing(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(rows(spark, 10), path, **SMALL)
    before = archive.fingerprint(path)
    save(rows(spark, 0), path)
    assert {n: f[1:] for n, f in archive.fingerprint(path).items()} == {n: f[1:] for n, f in before.items()}


def test_a_version_is_written_once(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    for _ in range(2):
        save(rows(spark, 10), path, txnAppId="app", txnVersion="7", **SMALL)
    assert load(str(path)).count() == 10
