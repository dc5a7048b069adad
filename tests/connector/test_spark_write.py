"""Writing from Spark: native and Kafka's names, several tasks, retries, bad rows and jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.golden import archive
from tests.support.rocketmq_copies import contents, write_options

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
        "'..'": lambda: save(base.selectExpr("'..' as topic", "body"), path),
        "0x01": lambda: save(base.selectExpr("topic", "body", "map('a', 'b\\u0001c') as properties"), path),
        "the limit is": lambda: save(base.selectExpr("topic", "repeat('x', 70000) as body"), path),
        "'colour'": lambda: save(base, path, colour="red"),
    }
    for words, call in cases.items():
        text = failure(call)
        lines = [line for line in text.splitlines() if "mqstore" in line and words in line]
        assert lines, f"{words} in {text}"
        assert "Traceback" not in text, words
        assert unchanged(path, before), words


def test_a_record_of_4_mib_is_written_and_one_byte_more_is_refused(spark, load, tmp_path: Path) -> None:
    path, most = tmp_path / "store", (4 << 20) - 91 - len("orders")
    largest = spark.range(1).selectExpr("'orders' as topic", f"repeat('x', {most}) as body")
    save(largest, path, **SMALL | {"commitLogFileSize": "8m"})
    assert load(str(path)).selectExpr("max(size) as size").collect()[0].size == 4 << 20
    before = archive.fingerprint(path)
    text = failure(
        lambda: save(spark.range(1).selectExpr("'orders' as topic", f"repeat('x', {most + 1}) as body"), path)
    )
    (line,) = [line for line in text.splitlines() if "'body'" in line]
    assert "its record has 4194305 bytes, the limit is 4194304" in line
    assert unchanged(path, before)


def unchanged(path: Path, before: dict[str, tuple[int, int, str]]) -> bool:
    """Whether every file and folder is unchanged, except for the time of a folder."""
    return {n: f[1:] for n, f in archive.fingerprint(path).items()} == {n: f[1:] for n, f in before.items()}


# A process-wide lock on the first byte, as a JVM acquires it.
HOLDER = """
import fcntl, sys, time
held = open(sys.argv[1], "r+b")
if sys.argv[2] == "locks":
    fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("there", flush=True)
time.sleep(float(sys.argv[3]))
"""


@contextmanager
def holding(path: Path, how: str, seconds: float = 300) -> Iterator[None]:
    """Runs another process that has a file open and, if `how` is `locks`, its first byte locked."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how, str(seconds)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield
        process.kill()


@pytest.mark.parametrize(
    ("file", "how", "words"),
    [
        ("lock", "locks", "is locked by a running broker; stop it, or write into a copy of its store"),
        ("lock", "opens", "is about to be locked by a running broker; stop it"),
        (".mqstore/lock", "locks", "is locked by another writer of mqstore; try again when it is done"),
    ],
    ids=["a running broker", "a booting broker", "another writer"],
)
def test_a_store_that_someone_holds_is_refused_in_one_line(
    spark, file: str, how: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    save(rows(spark, 10), path, **SMALL)
    before = archive.fingerprint(path)
    with holding(path / file, how):
        text = failure(lambda: save(rows(spark, 10), path, lockTimeout="300ms"))
    (line,) = [line for line in text.splitlines() if "StoreLockedError" in line]
    assert f"{path / file} {words}" in line
    assert "Traceback" not in text
    assert unchanged(path, before)


def test_a_second_writer_waits_for_the_first(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(rows(spark, 10), path, **SMALL)
    with holding(path / ".mqstore" / "lock", "locks", 3):
        save(rows(spark, 10), path)
    assert load(str(path)).count() == 20


@pytest.mark.parametrize("tasks", [1, 2, 12])
def test_shards_are_a_folder_of_stores_that_reads_as_one_table(spark, load, tasks: int, tmp_path: Path) -> None:
    path = tmp_path / "stores"
    path.mkdir()
    save(rows(spark, 60, tasks), path, publish="shards", **SMALL)
    assert len(list(path.iterdir())) == tasks
    assert [found.name for found in tmp_path.iterdir()] == ["stores"]
    got = load(str(path)).select("store", "body").collect()
    assert sorted(int(row.body.split()[1]) for row in got) == list(range(60))
    assert {row.store for row in got} == {found.name for found in path.iterdir()}
    assert load(str(path), key="k7").count() == 1
    before = archive.fingerprint(path)
    text = failure(lambda: save(rows(spark, 5), path, publish="shards"))
    assert f"{path}: this is a folder of stores ({tasks}) and none itself; name one of them" in text
    assert archive.fingerprint(path) == before


def test_an_empty_frame_writes_nothing(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    save(rows(spark, 10), path, **SMALL)
    before = archive.fingerprint(path)
    save(rows(spark, 0), path)
    assert unchanged(path, before)


@pytest.mark.parametrize("options", [{}, {"publish": "shards"}, {"engine": "rabbitmq", "queue": "q"}], ids=str)
def test_an_empty_frame_makes_a_store_that_is_read_as_no_rows(spark, load, tmp_path: Path, options) -> None:
    path = tmp_path / "store"
    save(rows(spark, 0).drop("key", "tags", "topic" if "queue" in options else ""), path, **options)
    assert load(str(path)).count() == 0
    if "publish" not in options:
        save(rows(spark, 5).drop("key", "tags", "topic" if "queue" in options else ""), path, **options)
        assert load(str(path)).count() == 5


def test_a_version_is_written_once(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "store"
    for app, version in (("app", "7"), ("app", "7"), ("app", "6"), ("other", "7"), ("app", "8")):
        save(rows(spark, 10), path, txnAppId=app, txnVersion=version, **SMALL)
    assert load(str(path)).count() == 30
    assert "'txnAppId'" in failure(lambda: save(rows(spark, 10), path, txnAppId="app"))
    assert load(str(path)).count() == 30
