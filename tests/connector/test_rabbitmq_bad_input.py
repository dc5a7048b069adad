"""Bad input to RabbitMQ reads and writes through Spark: one clear line each, checked word for word."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import lit

from connector.planning import Load
from storage_core.option_table import read_options
from tests.connector.spark_rows import failure
from tests.golden.archive import GOLDEN, fingerprint
from tests.rabbitmq import golden
from tests.support.rabbitmq_damage import edit, first_record, queue_file

ROWS, KILLED_ROWS = 182, 210
REMEDY = "; option mode=DROPMALFORMED leaves such messages out"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of a node that was stopped cleanly."""
    return golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The data directory of a node with a quorum queue and a stream."""
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(tmp_path)
    return tmp_path / "node"


def save(frame: Any, path: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("mqstore").mode(mode).options(**options).save(str(path))


def some(spark) -> Any:
    return spark.range(3).select(lit("x").alias("body"))


def test_directories_of_other_kinds_of_queues(load, node: Path) -> None:
    (folder,) = (node / "stream").iterdir()
    assert failure(lambda: load(str(folder)).count()) == (
        f"UnsupportedFormatError: {folder}: here lie RabbitMQ's streams, which mqstore does not read alone; "
        "give the node's data directory, or consume them from a running node"
    )


def test_a_queue_type_that_is_not_there(load, node: Path) -> None:
    vhosts = f"{node}/msg_stores/vhosts"
    assert failure(lambda: load(vhosts, queueType="quorum").count()) == (
        f"OptionError: option 'queueType' = 'quorum': there are no such queues at {vhosts}/{golden.DEFAULT_VHOST}"
    )


def test_queues_of_other_kinds_are_counted(node: Path, capsys) -> None:
    """Plans in this process: the output of Spark's planner process goes to the console, not to the test."""
    with Load((str(node),), read_options({})) as found:
        found.plan(("queue",))
    assert capsys.readouterr().err == (
        f"mqstore: {node}/msg_stores/vhosts/{golden.DEFAULT_VHOST}: the vhost also has 1 quorum queue and "
        f"1 stream queue; their messages lie elsewhere in {node}\n"
    )


def test_an_unknown_queue(load, store: Path, node: Path) -> None:
    text = failure(lambda: load(str(store), queue="a.smal").count())
    assert text == "OptionError: option 'queue' = 'a.smal': there is no such queue; did you mean a.small?"
    assert failure(lambda: load(str(node), queue="plian").count()) == (
        "OptionError: option 'queue' = 'plian': is in none of the 4 stores; did you mean plain? "
        "The queues are plain, prio, quorum, stream"
    )
    one = {"vhost": "/", "queueType": "classic"}
    assert failure(lambda: load(str(node), **one, startingOffsets='{"plan": {"0": 1}}').count()) == (
        "OptionError: option 'startingOffsets' = 'plan': there is no such queue; did you mean plain? "
        "The queues are plain, prio"
    )


def test_a_write_to_a_node_without_classic_queues(spark, node: Path) -> None:
    shutil.rmtree(node / "msg_stores")
    before = fingerprint(node)
    text = failure(lambda: save(some(spark), node, queue="orders"))
    assert text.endswith(f"below {node}; there is none with classic queues, and only these are written")
    assert fingerprint(node) == before


def test_an_unknown_virtual_host(load, node: Path) -> None:
    assert failure(lambda: load(str(node), vhost="/,oter")) == (
        "OptionError: option 'vhost' = 'oter': there is no such virtual host here; there are /, other"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recovery": "4.9"}, "option 'recovery' = '4.9': of a RabbitMQ store it is one of auto, none"),
        ({"scan": "log"}, "option 'scan' = 'log': RabbitMQ stores have no log; leave the option out"),
        ({"key": "k"}, "option 'key' = 'k': RabbitMQ stores have no key index; use where() on routingKeys or headers"),
        ({"msgId": "m"}, "option 'msgId' = 'm': RabbitMQ stores have no id index; use where() on messageId or guid"),
        ({"tag": "A"}, "option 'tag' = 'A': RabbitMQ messages have no tags; leave the option out"),
        ({"startingTimestamp": "1"}, ("option 'startingTimestamp' = '1': RabbitMQ keeps no store time, "
                                     "except in streams; read those alone with queueType=stream, "
                                     "or use startingOffsets or where(timestamp)")),
        ({"startingOffsets": "group:g"}, ("option 'startingOffsets' = 'group:g': RabbitMQ has no consumer groups; "
                                         "give sequence ids")),
        ({"startingOffsets": '{"a.small": {"1": 5}}'}, ("option 'startingOffsets' = 'a.small/1': "
                                                       "a RabbitMQ queue is one queue, with the id 0")),
        ({"view": "index"}, ("option 'view' = 'index': The views of a RabbitMQ store are messages, queues, segments, "
                            "damage")),
        ({"includeAcked": "yes"}, "option 'includeAcked' = 'yes': allowed are true and false"),
    ],
)  # fmt: skip
def test_a_wrong_option(load, store: Path, options: dict[str, str], text: str) -> None:
    assert failure(lambda: load(str(store), **options).count()) == f"OptionError: {text.format(store)}"


def test_rocketmqs_options(load, store: Path) -> None:
    for name, value in (("decompress", "false"), ("useIndex", "false"), ("commitLogPath", "/log")):
        assert failure(lambda: load(str(store), **{name: value})) == (  # noqa: B023
            f"OptionError: option '{name}' = '{value}': belongs to RocketMQ stores, and {store} is a RabbitMQ store; "
            "leave it out"
        )


def test_rabbitmqs_options_on_a_rocketmq_store(load, shop: str) -> None:
    for name, value in (("vhost", "/"), ("queue", "orders"), ("queuePattern", "o.*"), ("includeAcked", "true")):
        assert failure(lambda: load(shop, **{name: value})) == (  # noqa: B023
            f"OptionError: option '{name}' = '{value}': belongs to RabbitMQ stores, and {shop} is a RocketMQ store; "
            "leave it out"
        )


def test_an_offset_after_the_end(load, store: Path) -> None:
    text = failure(lambda: load(str(store), queue="a.small", startingOffsets='{"a.small": {"0": 99999}}').count())
    assert text.startswith("OffsetOutOfRangeError: queue a.small: startingOffsets 99999 is greater than the end")


def modes(load, store: Path, where: str, reason: str, lost: int, shown: int, whole: int = ROWS) -> None:
    """Checks the modes. FAILFAST: one line with file, position and reason; DROPMALFORMED: the remaining rows;
    PERMISSIVE: the reason in a row.
    """
    text = failure(lambda: load(str(store)).collect())
    assert text.startswith(f"CorruptionError: {store}/{where}: ")
    assert reason in text
    assert load(str(store), mode="DROPMALFORMED").count() == whole - lost
    rows = load(str(store), mode="PERMISSIVE").collect()
    assert len(rows) == whole - lost + shown
    assert [row.corruption for row in rows if row.corruption is not None] == [text.removesuffix(REMEDY)] * shown


def test_a_damaged_segment(load, store: Path) -> None:
    path = queue_file(store, "a.small", "0.idx")
    position = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\xc0\x01abc")
    where = f"{path.relative_to(store)} at {position}"
    modes(load, store, where, "a node does not start a vhost with such a segment", 0, 1)


def test_a_damaged_journal(load, tmp_path: Path) -> None:
    killed = golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST
    path = queue_file(killed, "q ünïcödé ☃/..", "journal.jif")
    data = path.read_bytes()
    path.write_bytes(data + data[-8:])
    where = f"{path.relative_to(killed)} at {len(data)}"
    modes(load, killed, where, "the deliver of sequence id 0 does not follow", 0, 1, KILLED_ROWS)


def test_a_damaged_message_file(load, store: Path) -> None:
    path, position = first_record(store, "b.large")
    edit(path, lambda data: data.__setitem__(position + 26, 99))
    modes(load, store, f"msg_store_persistent/0.rdq at {position}", "cannot be decoded", 1, 1)


def test_cut_files(load, store: Path, tmp_path: Path) -> None:
    """A truncated segment or message file is damage; a truncated journal tail is not, because a node drops it too."""
    path = queue_file(store, "a.small", "0.idx")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    text = failure(lambda: load(str(store)).collect())
    assert text.startswith(f"CorruptionError: {path} at {len(whole) - 2}: ")
    assert load(str(store), mode="DROPMALFORMED").count() == ROWS
    assert [r.corruption for r in load(str(store), mode="PERMISSIVE").collect() if r.corruption] == [
        text.removesuffix(REMEDY)
    ]
    path.write_bytes(whole)
    path = store / "msg_store_persistent" / "0.rdq"
    path.write_bytes(path.read_bytes()[:-100])
    where = f"{queue_file(store, 'p.purged', '0.idx').relative_to(store)} at 235"
    modes(load, store, where, "its message is not in the message store", 1, 1)
    killed = golden.unpack("s3_mixed_kill9", tmp_path / "killed") / golden.DEFAULT_VHOST
    path = queue_file(killed, "a.small", "journal.jif")
    path.write_bytes(path.read_bytes()[:-5])
    for mode in ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"):
        assert load(str(killed), mode=mode).count() >= KILLED_ROWS - 1


def test_a_message_file_that_vanished_after_planning(load, store: Path) -> None:
    frame = load(str(store))
    assert frame.count() == ROWS
    os.unlink(store / "msg_store_persistent" / "0.rdq")
    text = failure(frame.count)
    assert text.startswith(f"DataLossError: {store}/msg_store_persistent/0.rdq at ")
    assert text.endswith("the file vanished while the store was read; read again, or a copy")


def test_a_node_that_runs_is_not_written_to(spark, node: Path) -> None:
    store = node / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST
    before = fingerprint(store)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        (node.parent / "node.pid").write_text(f"{sleeper.pid}\n")
        text = failure(lambda: save(some(spark), store, queue="plain"))
        assert text == f"StoreLockedError: {store} is locked by a running node (pid {sleeper.pid}); stop it first"
    finally:
        sleeper.kill()
        sleeper.wait()
    with open(store / "queues" / next(iter(os.listdir(store / "queues"))) / "0.idx", "rb"):
        text = failure(lambda: save(some(spark), store, queue="plain"))
    assert text == (
        f"StoreLockedError: {store} is locked by process {os.getpid()}, which has a file of it open"
    )  # fmt: skip
    assert fingerprint(store) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "q", "queues": "8"}, ("option 'queues' = '8': belongs to RocketMQ stores, and {} is a RabbitMQ "
                                        "store; leave it out")),
        ({"queue": "q", "preserve": "true"}, ("option 'preserve' = 'true': belongs to RocketMQ stores, and {} is a "
                                             "RabbitMQ store; leave it out")),
        ({"queueArguments": '{"x-max-priority": 3}'}, ("option 'queueArguments' = '{\"x-max-priority\": 3}': belong to "
                                                      "the option queue; give it too")),
        ({"queue": "q", "queueArguments": "[1]"}, ("option 'queueArguments' = '[1]': must be a JSON object "
                                                  'such as {"x-max-priority": 5}')),
        ({"queue": "q", "vhost": "other"}, "option 'vhost' = 'other': {} is the store of the vhost /"),
        ({"queue": "q", "msg_store_file_size_limit": "big"}, ("option 'msg_store_file_size_limit' = 'big': "
                                                             "a number is wanted")),
        ({"queue": "q", "queue_index_embed_below": "1"}, ("option 'queue_index_embed_below' = '1': there is no such "
                                                         "option; did you mean queue_index_embed_msgs_below or "
                                                         "queue_index_segment_entry_count?")),
        ({"queue": "q", "includeAcked": "true"}, ("option 'includeacked' = 'true': includeAcked belongs to reading; "
                                                 "leave it out when writing")),
    ],
)  # fmt: skip
def test_a_wrong_option_of_a_write(spark, store: Path, options: dict[str, str], text: str) -> None:
    before = fingerprint(store)
    message = failure(lambda: save(some(spark), store, **options))
    assert message == "OptionError: " + text.replace("{}", str(store))
    assert fingerprint(store) == before


def test_rabbitmqs_options_of_a_new_store_ask_for_the_engine(spark, tmp_path: Path) -> None:
    assert failure(lambda: save(some(spark), tmp_path / "new", queue="q", exchange="e")) == (
        f"OptionError: option 'exchange' = 'e': belongs to RabbitMQ stores; give option engine=rabbitmq "
        f"for a new one at {tmp_path / 'new'}"
    )
    assert not (tmp_path / "new").exists()


def test_columns_of_a_wrong_type(spark, store: Path) -> None:
    before = fingerprint(store)
    cases = {
        "1 as body": "ColumnError: column 'body': holds int32; it must be text or bytes",
        "'x' as body, array(1) as routingKeys": "ColumnError: column 'routingKeys': holds int32; it must be text or "
                                               "bytes",
        "'x' as body, 'a' as priority": "RowError: row 0 of its task: column 'priority' is 'a': a 64-bit integer "
                                       "is required",
        "'x' as body, 'q' as queu": None,
        "1 as messageId": "ColumnError: column 'body': a write needs this column (or value)",
    }  # fmt: skip
    for columns, text in cases.items():
        frame = spark.range(3).selectExpr(*columns.split(", "))
        message = failure(lambda: save(frame, store, queue="a.small"))  # noqa: B023
        assert message == text or (
            text is None and message.startswith("ColumnError: column 'queu': there is no such column")
        )
    files = {name: seen for name, seen in fingerprint(store).items() if not name.startswith(".mqstore") and name != "."}
    assert files == {name: seen for name, seen in before.items() if name != "."}


def test_overwrite_and_streams_are_refused(spark, store: Path, tmp_path: Path) -> None:
    before = fingerprint(store)
    assert failure(lambda: save(some(spark), store, mode="overwrite", queue="q")) == (
        "mode('overwrite') is refused: a message store only grows; use mode('append'), "
        "or delete the directory yourself and then append"
    )

    def stream(path: Path, **options: str) -> None:
        source = spark.readStream.format("rate").load().selectExpr("'x' as body", "'q' as queue")
        checkpoint = str(tmp_path / "checkpoint" / path.name)
        writer = source.writeStream.format("mqstore").option("checkpointLocation", checkpoint).options(**options)
        query = writer.trigger(once=True).start(str(path))
        query.awaitTermination()

    for path, options in ((store, {}), (tmp_path / "new", {"engine": "rabbitmq"})):
        assert failure(lambda: stream(path, **options)) == (  # noqa: B023
            f"UnsupportedFormatError: {path}: a RabbitMQ store takes no stream, each commit costs as much as its whole "
            "vhost; write batches with df.write, or the stream to a RocketMQ store"
        )
    assert fingerprint(store) == before
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
