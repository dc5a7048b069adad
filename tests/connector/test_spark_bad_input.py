"""Bad input through Spark: one clear line that says what is wrong, where, and what to do, without a stack trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql.functions import lit

from connector.datasource import MqStoreDataSource
from connector.errors import host_name, one_line
from storage_core.errors import MqStoreError
from storage_core.files import system
from tests.connector.spark_rows import failure
from tests.golden import archive

FLIPPED = "damaged-flipped-body-4.9.3"


def test_no_path(load) -> None:
    assert failure(lambda: load(None)) == (
        "no path: give the store's directory, as in load('/backup/store') or save('/data/store'). Spark 4 does not "
        "hand a catalog table's path to Python sources; for SQL use CREATE TEMPORARY VIEW … USING mqstore OPTIONS "
        "(path '…')"
    )


def test_another_scheme_names_the_host(load) -> None:
    assert failure(lambda: load("ftp://bucket/store")) == (
        f"UnsupportedFormatError: ftp://bucket/store: mqstore on host {host_name()} reads local directories and s3:, "
        "s3a:, s3n:, gs:, abfs:, abfss:, az:, hdfs:, viewfs:, not ftp:; copy the store to one of these, or mount it"
    )


def test_an_unknown_option_names_the_close_ones(load, shop: str) -> None:
    assert failure(lambda: load(shop, startingOfset="earliest")) == (
        "OptionError: option 'startingofset' = 'earliest': there is no such option; "
        "did you mean startingOffsets, endingOffsets or startingTimestamp?"
    )


def test_an_unknown_column(load, shop: str) -> None:
    assert failure(lambda: load(shop, columns="topic,bodi")) == (
        "OptionError: option 'columns' = 'topic,bodi': there is no column bodi; did you mean body?"
    )
    assert failure(lambda: load(shop, schema="topic string, quueId int").count()) == (
        "OptionError: option 'schema' = 'struct<topic:string,quueId:int>': "
        "there is no column quueId; did you mean queueId?"
    )


def test_a_column_of_another_type(load, shop: str) -> None:
    assert failure(lambda: load(shop, schema="queueId string").count()) == (
        "OptionError: option 'schema' = 'struct<queueId:string>': column queueId is int or bigint, not string"
    )


def test_columns_together_with_a_schema(load, shop: str) -> None:
    assert failure(lambda: load(shop, schema="topic string", columns="topic").count()) == (
        "OptionError: option 'columns' = 'topic': cannot be combined with .schema(...); give one of the two"
    )


def test_an_unknown_mode(load, shop: str) -> None:
    assert failure(lambda: load(shop, mode="FAILFASTER")) == (
        "OptionError: option 'mode' = 'FAILFASTER': "
        "allowed are FAILFAST, DROPMALFORMED, PERMISSIVE; did you mean FAILFAST?"
    )


def test_an_unknown_view_names_those_that_are_there(load, shop: str) -> None:
    text = failure(lambda: load(shop, view="dammage"))
    assert text.startswith("OptionError: option 'view' = 'dammage': ")
    assert "damage" in text


def test_an_option_of_streams(load, shop: str) -> None:
    """Spark requests the columns of a batch and of a stream in the same way; only an action distinguishes them."""
    assert failure(load(shop, maxOffsetsPerTrigger="100").count) == (
        "OptionError: option 'maxOffsetsPerTrigger' = '100': "
        "belongs to streaming reads; leave it out, or read with readStream"
    )


def test_a_path_that_is_not_there(load, tmp_path: Path) -> None:
    text = failure(lambda: load(str(tmp_path / "nothing")))
    assert text.startswith(f"StoreNotFoundError: {tmp_path / 'nothing'}")


def test_a_folder_that_is_no_store(load, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"miau")
    text = failure(lambda: load(str(tmp_path / "photos")))
    assert text.startswith(f"StoreNotFoundError: {tmp_path / 'photos'}")


def test_an_empty_folder(load, tmp_path: Path) -> None:
    text = failure(lambda: load(str(tmp_path)))
    assert text.startswith(f"StoreNotFoundError: {tmp_path}")
    assert "empty" in text


def test_a_file(load, shop: str) -> None:
    path = f"{shop}/checkpoint"
    text = failure(lambda: load(path))
    assert text.startswith(f"StoreNotFoundError: {path}")
    assert "file" in text


def test_a_topic_that_is_not_there_names_those_that_are(load, shop: str) -> None:
    text = failure(lambda: load(shop, topic="order").count())
    assert text.startswith("OptionError: option 'topic' = 'order'")
    assert "orders" in text
    assert "payments" in text


def test_a_queue_that_is_not_there(load, shop: str) -> None:
    text = failure(lambda: load(shop, assign='{"orders": [7]}').count())
    assert text.startswith("OptionError: option 'assign'")
    assert "orders" in text


def test_an_offset_out_of_range(load, shop: str) -> None:
    text = failure(lambda: load(shop, topic="orders", startingOffsets='{"orders": {"0": 99999}}').count())
    assert text.startswith("OffsetOutOfRangeError: ")
    assert "99999" in text
    assert "1498" in text


def test_offsets_that_no_longer_exist_name_the_option(load, golden) -> None:
    queue = archive.info("expired-4.9.3")["truth"]["queues"][0]
    start = f'{{"{queue["topic"]}": {{"{queue["queueId"]}": 0}}}}'
    text = failure(lambda: load(golden("expired-4.9.3"), topic=queue["topic"], startingOffsets=start).count())
    assert text.startswith("DataLossError: ")
    assert "failOnDataLoss" in text


def test_two_engines_in_one_directory(load, tmp_path: Path, golden) -> None:
    shutil.copytree(golden("delay-4.9.3"), tmp_path / "store")
    (tmp_path / "store" / "msg_store_persistent").mkdir()
    (tmp_path / "store" / "queues").mkdir()
    (tmp_path / "store" / ".vhost").write_text("/")
    text = failure(lambda: load(str(tmp_path / "store")).count())
    assert text.startswith("UnsupportedFormatError: ")
    assert "rocketmq" in text
    assert "rabbitmq" in text
    assert "engine" in text


def test_queues_in_rocksdb(load, tmp_path: Path, golden) -> None:
    shutil.copytree(golden("delay-4.9.3"), tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    (tmp_path / "store" / "consumequeue").mkdir()
    (tmp_path / "store" / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    text = failure(lambda: load(str(tmp_path / "store")).count())
    assert text.startswith("UnsupportedFormatError: ")
    assert "RocksDB" in text
    assert "scan=log" in text
    assert load(str(tmp_path / "store"), scan="log").count() == 150


def test_dledger_logs(spark, load, tmp_path: Path) -> None:
    store = archive.unpack("killed-5.3.3", tmp_path, "rocketmq/ledger")
    read = load(str(store), subscribePattern="orders|events")
    assert read.count() == len(archive.truth("killed-5.3.3", "rocketmq/ledger"))
    rows = spark.createDataFrame([("orders", "x")], "topic string, body string")
    text = failure(lambda: rows.write.format("mqstore").mode("append").save(str(store)))
    assert text.startswith("UnsupportedFormatError: ")
    assert "a DLedger log, which mqstore reads and does not change" in text
    (store / "dledger-n1").mkdir()
    text = failure(lambda: load(str(store)).count())
    assert text.startswith("UnsupportedFormatError: ")
    assert "dledger-n0 and dledger-n1" in text


def test_queues_without_a_commit_log_name_the_option(load, tmp_path: Path, golden) -> None:
    shutil.copytree(golden("delay-4.9.3"), tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "commitlog")
    assert "commitLogPath" in failure(lambda: load(str(tmp_path / "store")).count())


def test_a_damaged_message_says_where_it_is(load, golden) -> None:
    directory = golden(FLIPPED)
    assert failure(lambda: load(directory).collect()).startswith(
        f"CorruptionError: {directory}/commitlog/00000000000000016384 at {17320 - 16384}: "
    )


def test_a_store_that_vanished_after_planning_names_the_host(load, tmp_path: Path, golden) -> None:
    shutil.copytree(golden("delay-4.9.3"), tmp_path / "store")
    frame = load(str(tmp_path / "store"))
    assert frame.count() == 150
    shutil.rmtree(tmp_path / "store")
    assert failure(frame.count) == (
        f"StoreNotFoundError: {tmp_path / 'store'} does not exist on host {host_name()}, where a task reads it; "
        "every machine that runs Spark must see the store at this path: mount it there, or read where it is"
    )


def test_a_file_that_shrank_after_planning_leaves_python_alive(load, tmp_path: Path, golden) -> None:
    shutil.copytree(golden("mixed-4.9.3"), tmp_path / "store")
    frame = load(str(tmp_path / "store"), verifyCrc="false", mode="DROPMALFORMED")
    assert frame.count() == 1027
    log = sorted((tmp_path / "store" / "commitlog").iterdir())
    os.truncate(log[0], 1000)
    text = failure(frame.count)
    assert any(text.startswith(name) for name in ("DataLossError: ", "CorruptionError: ", "TornWriteError: "))
    assert log[0].name in text


def test_writing_without_a_topic(spark, tmp_path: Path) -> None:
    frame = spark.range(1).select(lit("x").alias("body"))
    text = failure(lambda: frame.write.format("mqstore").mode("append").save(str(tmp_path / "new")))
    assert text == "ColumnError: column 'topic': a write needs this column; or name one topic with option topic"
    assert not (tmp_path / "new").exists()


def test_no_permission(monkeypatch, tmp_path: Path) -> None:
    """The tests may run as root, who may read everything, so the calls of `files.system` are replaced to refuse."""

    def refused(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "commitlog").mkdir()
    monkeypatch.setattr(system, "names", refused)
    monkeypatch.setattr(system, "entries", refused)
    with pytest.raises((MqStoreError, OSError)) as caught:
        MqStoreDataSource({"path": str(tmp_path)}).schema()
    text = one_line(caught.value)
    assert text is not None
    assert str(tmp_path) in text
    assert "permission denied" in text.lower()
