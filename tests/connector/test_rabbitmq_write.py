"""Writing RabbitMQ through Spark: native and Kafka's names, priorities, appends, another engine's rows, warnings."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import storage_core
from connector.batch_writer import MqStoreBatchWriter
from connector.schema import to_spark
from storage_core.errors import StoreNotFoundError
from storage_core.rabbitmq import open_store, stores_below
from tests.connector.spark_rows import failure
from tests.golden.archive import GOLDEN, fingerprint
from tests.rabbitmq import golden
from tests.rabbitmq.writing import check, rows

SMALL = {"queue_index_segment_entry_count": "16", "msg_store_file_size_limit": "20000"}


def save(frame: Any, path: Path, **options: str) -> None:
    frame.write.format("mqstore").mode("append").options(**options).save(str(path))


def frame_of(spark, table: pa.Table, tasks: int = 3) -> Any:
    """The rows in their order, spread over several tasks."""
    return spark.createDataFrame(table).coalesce(tasks)


def test_rows_of_several_tasks_in_a_new_store_and_again(spark, load, tmp_path: Path) -> None:
    table = rows(300)
    path = tmp_path / "vhosts" / "v"
    save(frame_of(spark, table), path, engine="rabbitmq", **SMALL)
    with open_store(str(path)) as store:
        assert (store.vhost, store.segment_entry_count) == ("/", 16)
        check(store, table)
    save(frame_of(spark, rows(40, 2)), path)
    with open_store(str(path)) as store:
        check(store, pa.concat_tables([table, rows(40, 2)]))
    found = load(str(path)).where("queue = 'a'").collect()
    assert {row.redelivered for row in found} == {False}
    assert len(list(path.glob("msg_store_persistent/*.rdq"))) > 3


def test_a_vhost_of_its_own_with_definitions_next_to_it(spark, load, tmp_path: Path) -> None:
    path = tmp_path / "vhosts" / "shop"
    frame = spark.range(20).selectExpr("concat('m', id) as value", "cast(id % 4 as int) as priority")
    arguments = '{"x-max-priority": 2, "x-queue-mode": "lazy"}'
    save(frame, path, engine="rabbitmq", vhost="shop", queue="jobs", queueArguments=arguments)
    found = load(str(path)).collect()
    assert {(row.vhost, row.queue, row.store) for row in found} == {("shop", "jobs", "shop")}
    # The highest priority first; priorities above x-max-priority count as x-max-priority.
    assert [min(row.priority, 2) for row in found] == [2] * 10 + [1] * 5 + [0] * 5
    definitions = json.loads((tmp_path / "vhosts" / "definitions.json").read_text())
    assert definitions["vhosts"] == [{"name": "shop"}]
    assert [(each["name"], each["vhost"], each["arguments"]) for each in definitions["queues"]] == [
        ("jobs", "shop", json.loads(arguments))
    ]
    save(frame, path, topic="jobs")
    assert load(str(path)).count() == 40


@pytest.mark.parametrize(
    ("snapshot", "queue"),
    [("s1_mixed_clean_idle", "a.small"), ("s11_cqv2_clean", "v2.q"), ("v4_compacted_clean", "plain")],
)
def test_append_to_a_store_of_a_real_node(spark, load, snapshot: str, queue: str, tmp_path: Path) -> None:
    path = golden.unpack(snapshot, tmp_path) / golden.DEFAULT_VHOST
    before = load(str(path)).toArrow()
    save(spark.range(50).selectExpr("concat('new ', id) as body", f"'{queue}' as queue"), path)
    after = load(str(path)).toArrow()
    assert after.num_rows == before.num_rows + 50
    by_queue = golden.by_queue(after.drop_columns(["timestamp", "expiresAt"]))
    old = golden.by_queue(before.drop_columns(["timestamp", "expiresAt"]))
    assert [row["body"] for row in by_queue[queue]] == [
        *(row["body"] for row in old[queue]), *(f"new {n}".encode() for n in range(50)),
    ]  # fmt: skip
    assert all(by_queue[name] == listed for name, listed in old.items() if name != queue)


def test_rows_of_a_read_are_written_as_they_were(spark, load, tmp_path: Path) -> None:
    source = golden.unpack("s3_mixed_kill9", tmp_path / "old") / golden.DEFAULT_VHOST
    save(load(str(source), minPartitions="1"), tmp_path / "vhosts" / "copy", engine="rabbitmq")
    names = ["queue", "body", "exchange", "routingKeys", "headers", "rawProperties", "deliveryMode", "priority"]
    old, new = (golden.by_queue(golden.table(p, columns=tuple(names))) for p in (source, tmp_path / "vhosts" / "copy"))
    assert {name: sorted(map(str, listed)) for name, listed in new.items()} == {
        name: sorted(map(str, listed)) for name, listed in old.items()
    }


def test_to_a_nodes_data_directory_by_vhost(spark, load, tmp_path: Path) -> None:
    golden.unpack("s9_vhosts_kill9", tmp_path / "node" / "msg_stores")
    node = tmp_path / "node"
    names = {row.vhost for row in load(str(node), columns="vhost").distinct().collect()}
    before = load(str(node)).count()
    for name in names:
        save(spark.range(3).selectExpr("'x' as body"), node, vhost=name, queue="moved")
    found = load(str(node), queue="moved").groupBy("vhost").count().collect()
    assert {(row.vhost, row["count"]) for row in found} == {(name, 3) for name in names}
    assert load(str(node)).count() == before + 3 * len(names)
    text = failure(lambda: save(spark.range(3).selectExpr("'x' as body"), node, vhost="nope", queue="q"))
    assert text == (
        f"OptionError: option 'vhost' = 'nope': there is no such virtual host below {node}; "
        f"there are {', '.join(sorted(names))}"
    )


def test_to_a_node_that_has_quorum_queues_too(spark, load, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(tmp_path)
    node = tmp_path / "node"
    save(spark.range(5).selectExpr("concat('m', id) as body"), node, queue="plain")
    assert load(str(node), queue="plain").count() == 8
    with pytest.raises(StoreNotFoundError) as caught:
        storage_core.open_store(str(node))
    assert str(caught.value) == (
        f"StoreNotFoundError: {node}: this is the data directory of a RabbitMQ node; open the store of one of its "
        "virtual hosts: " + ", ".join(stores_below(str(node)))
    )


def test_rows_that_would_not_survive_a_start_are_counted(load, tmp_path: Path, capsys) -> None:
    """Commits in this process: the output of Spark's committing process goes to the console, not to the test."""
    table = pa.table({"body": ["x"] * 10, "deliveryMode": pa.array([1, 2] * 5, pa.int32())})
    path = str(tmp_path / "v")
    writer = MqStoreBatchWriter({"engine": "rabbitmq", "queue": "q"}, path, to_spark(table.schema), False)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter(table.to_batches())), None])
    assert load(path).count() == 5
    assert capsys.readouterr().err == (
        f"mqstore: {path}: 5 rows with deliveryMode 1 (or none) were not written: "
        "they would not survive a node's start\n"
    )


@pytest.mark.parametrize("failing", ["body", "queue", "priority"])
def test_a_bad_row_leaves_everything_as_it_was(spark, tmp_path: Path, failing: str) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    before = fingerprint(path)
    bad = {"body": "null", "queue": "''", "priority": "300"}
    good = {"body": "'x'", "queue": "'a.small'", "priority": "1"}
    columns = [f"if(id = 17, {bad[name]}, {good[name]}) as {name}" if name == failing else f"{good[name]} as {name}"
               for name in good]  # fmt: skip
    text = failure(lambda: save(spark.range(0, 30, 1, 1).selectExpr(*columns), path))
    shown = {"body": "null", "queue": "empty", "priority": "'300'"}
    assert text.startswith(f"RowError: row 17 of its task: column '{failing}' is {shown[failing].strip(chr(39))}")
    files = {name: seen for name, seen in fingerprint(path).items() if not name.startswith(".mqstore") and name != "."}
    assert files == {name: seen for name, seen in before.items() if name != "."}
