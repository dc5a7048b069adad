"""Reading RabbitMQ through Spark: every snapshot of a real node equals its truth; options, Kafka's columns, views."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_mqstore import read
from storage_core.rabbitmq import stores_below
from tests.golden.archive import GOLDEN, fingerprint
from tests.rabbitmq import golden


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The `vhosts` folder of a snapshot, unpacked once and checked at the end to be unchanged."""
    unpacked: dict[str, tuple[Path, Any]] = {}

    def folder(name: str) -> Path:
        if name not in unpacked:
            found = golden.unpack(name, tmp_path_factory.mktemp(name))
            unpacked[name] = found, fingerprint(found)
        return unpacked[name][0]

    yield folder
    for found, before in unpacked.values():
        assert fingerprint(found) == before, f"reading changed {found}"


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a node with two vhosts, a quorum queue and a stream."""
    folder = tmp_path_factory.mktemp("node")
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder)
    before = fingerprint(folder)
    yield folder / "node"
    assert fingerprint(folder) == before


def expected(name: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    return {
        (queue["vhost_dir"], queue["name"]): [golden.without_properties(message) for message in queue["messages"]]
        for queue in golden.truth(name)["queues"]
        if queue["messages"]
    }


def delivered(table: pa.Table) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        found.setdefault((row["store"], row["queue"]), []).append(golden.as_delivered(row))
    return found


@pytest.mark.parametrize("name", golden.NAMES)
def test_rows_equal_the_truth(load, snapshot, name: str) -> None:
    vhosts = snapshot(name)
    own = pa.concat_tables([golden.table(Path(path)) for path in stores_below(str(vhosts))])
    for limit in ({"minPartitions": "1", "maxBytesPerPartition": "1t"}, {"minPartitions": "7"}):
        frame = load(str(vhosts), **limit)
        assert frame.columns == own.schema.names
        assert frame.rdd.getNumPartitions() >= (7 if limit["minPartitions"] == "7" else 1)
        table = frame.toArrow()
        assert delivered(table) == expected(name)
        # Values that the truth lacks (times, places, single properties) must equal those that the engine returns.
        assert sorted_rows(table) == sorted_rows(own)


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    order = table.sort_by([("store", "ascending"), ("queue", "ascending"), ("file", "ascending"),
                           ("position", "ascending"), ("sequenceId", "ascending")])  # fmt: skip
    micros = [order[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for name in ("timestamp", "expiresAt")]
    plain = order.drop_columns(["timestamp", "expiresAt"])
    return plain.append_column("timestamp", micros[0]).append_column("expiresAt", micros[1]).to_pylist()


def test_a_vhost_directory_alone(load, snapshot) -> None:
    path = snapshot("s9_vhosts_kill9") / golden.DEFAULT_VHOST
    frame = load(str(path), columns="store,vhost,queue,body")
    assert {(row.store, row.vhost) for row in frame.collect()} == {(golden.DEFAULT_VHOST, "/")}


def test_vhosts_are_chosen_by_name(load, snapshot) -> None:
    vhosts = str(snapshot("s9_vhosts_kill9"))
    every = {row.vhost for row in load(vhosts).select("vhost").distinct().collect()}
    assert len(every) >= 2
    for name in every:
        frame = load(vhosts, vhost=f'["{name}"]', columns="vhost,store")
        assert {row.vhost for row in frame.collect()} == {name}
    both = load(vhosts, vhost=",".join(sorted(every)), columns="vhost")
    assert both.count() == load(vhosts, columns="vhost").count()


def test_a_nodes_data_directory(load, node: Path) -> None:
    rows = load(str(node)).collect()
    assert {(row.vhost, row.queue, row.body.decode()) for row in rows} == {
        ("/", name, f"hello {name}") for name in ("plain", "prio", "quorum")
    }
    assert {(row.queue, row.queueType, row.deliveryCount) for row in rows} == {
        ("plain", "classic", None), ("prio", "classic", None), ("quorum", "quorum", 0),
    }  # fmt: skip
    assert load(str(node.parent)).count() == len(rows) == 9
    assert load(str(node), queueType="classic").count() == 6
    assert load(str(node), vhost="other").count() == 0


def test_queues_by_name_and_pattern(load, snapshot) -> None:
    path = str(snapshot("s1_mixed_clean_idle") / golden.DEFAULT_VHOST)
    sizes = {queue["name"]: len(queue["messages"]) for queue in golden.truth("s1_mixed_clean_idle")["queues"]}

    def counts(**options: str) -> dict[str, int]:
        rows = load(path, **options, columns="queue").groupBy("queue").count().collect()
        return {row["queue"]: row["count"] for row in rows}

    assert counts(queue="a.small,b.large") == {name: sizes[name] for name in ("a.small", "b.large")}
    assert counts(topic='["q ünïcödé ☃/.."]') == {"q ünïcödé ☃/..": sizes["q ünïcödé ☃/.."]}
    assert counts(queuePattern=r"[ab]\..*") == {
        name: size for name, size in sizes.items() if size and name[:2] in ("a.", "b.")
    }
    assert counts(assign='{"a.small": [0]}') == {"a.small": sizes["a.small"]}


def test_offsets_are_sequence_ids(load, snapshot) -> None:
    path = str(snapshot("s5_16384_kill9") / golden.DEFAULT_VHOST)
    every = load(path, columns="queue,sequenceId").toArrow()
    queue = every["queue"][0].as_py()
    ids = sorted(every.filter(pc.equal(every["queue"], queue))["sequenceId"].to_pylist())
    low, high = ids[10], ids[-10]
    found = load(
        path, queue=queue, columns="sequenceId", startingOffsets=f'{{"{queue}": {{"0": {low}}}}}',
        endingOffsets=f'{{"{queue}": {{"0": {high}}}}}',
    )  # fmt: skip
    assert sorted(row.sequenceId for row in found.collect()) == [each for each in ids if low <= each < high]
    last = load(path, queue=queue, columns="sequenceId", startingOffsets="last:3").collect()
    assert [row.sequenceId for row in last] == ids[-3:]
    assert (
        load(path, queue=queue, startingOffsets=f'{{"{queue}": {{"0": -1}}}}'.replace("-1", str(ids[-1]))).count() == 1
    )


def test_acknowledged_messages_that_are_still_there(load, snapshot) -> None:
    path = str(snapshot("s5_16384_kill9") / golden.DEFAULT_VHOST)
    frame = load(path, includeAcked="true", columns="sequenceId,acked")
    assert {row["acked"]: row["count"] for row in frame.groupBy("acked").count().collect()} == {
        True: 1616, False: 22000,
    }  # fmt: skip
    assert "acked" not in load(path).columns
    assert load(path, includeAcked="true").columns[-1] == "acked"


def test_a_vhost_without_names_takes_those_of_the_option(load, tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    for stub in path.glob("queues/*/.queue_name"):
        stub.unlink()
    rows = load(str(path), queue="a.small", columns="queue").collect()
    assert {row.queue for row in rows} == {"a.small"}
    start = load(str(path), queue="a.small", startingOffsets='{"a.small": {"0": 0}}', columns="queue").count()
    assert start == len(rows) == 39
    assert all(len(row.queue) >= 24 for row in load(str(path), columns="queue").collect())


def test_the_kafka_layout(load, snapshot) -> None:
    path = str(snapshot("s1_mixed_clean_idle") / golden.DEFAULT_VHOST)
    kafka = load(path, layout="kafka", includeHeaders="true", subscribe="g.headers,a.small")
    assert kafka.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    native = {(row.queue, row.sequenceId): row for row in load(path, queue="g.headers,a.small").collect()}
    rows = kafka.collect()
    assert len(rows) == len(native) > 40
    for row in rows:
        source = native[row.topic, row.offset]
        assert (row.partition, row.timestamp, row.timestampType) == (0, None, 0)
        assert row.value == source.body
        assert row.key.decode() == source.routingKeys[0]
        headers = None if not source.headers else {name: value.encode() if value is not None else None
                                                   for name, value in source.headers.items()}  # fmt: skip
        assert (None if row.headers is None else {h.key: h.value for h in row.headers}) == headers
    assert load(path, layout="kafka", columns="timestamp,timestampType,partition").distinct().count() == 1
    assert load(path, layout="kafka", columns="key").count() == load(path).count()


def test_filters_and_the_second_way_in(spark, load, snapshot) -> None:
    path = str(snapshot("s1_mixed_clean_idle") / golden.DEFAULT_VHOST)
    wanted = sorted((row.queue, row.sequenceId) for row in load(path).collect() if row.queue == "a.small")[5:]
    found = read(spark, path, filters=[("queue", "=", "a.small"), ("sequenceId", ">=", wanted[0][1])],
                 columns=["queue", "sequenceId"])  # fmt: skip
    assert sorted(tuple(row) for row in found.collect()) == wanted
    kept = load(path).where(f"queue = 'a.small' and sequenceId >= {wanted[0][1]}").select("queue", "sequenceId")
    assert sorted(tuple(row) for row in kept.collect()) == wanted
    keys = read(spark, path, filters=[("routingKeys", "contains", "a.small")], columns=["queue"])
    assert {row.queue for row in keys.collect()} == {"a.small"}


def test_the_view_of_queues(load, snapshot) -> None:
    path = str(snapshot("s1_mixed_clean_idle"))
    rows = {row.queue: row for row in load(path, view="queues").collect()}
    for queue in golden.truth("s1_mixed_clean_idle")["queues"]:
        if queue["name"] in rows and queue["vhost_dir"] == golden.DEFAULT_VHOST:
            row = rows[queue["name"]]
            assert row.messages == len(queue["messages"])
            assert row.bytes == sum(message["body_size"] for message in queue["messages"])
            assert row.ready + row.unacknowledged == row.messages
    (one,) = load(path, view="queues", queue="a.small", columns="queue,messages").collect()
    assert tuple(one) == ("a.small", 39)
    assert {row.queue for row in load(path, view="queues", queuePattern="a.*").collect()} == {
        name for name in rows if name.startswith("a")
    }


def test_the_view_of_queues_of_a_node(load, node: Path) -> None:
    rows = {(row.vhost, row.queue): row for row in load(str(node), view="queues").collect()}
    assert {key: (row.type, row.durable, row.messages) for key, row in rows.items()} == {
        ("/", "plain"): ("classic", True, 3), ("/", "prio"): ("classic", True, 3), ("/", "lazy"): ("classic", True, 0),
        ("/", "quorum"): ("quorum", True, 3), ("/", "stream"): ("stream", True, 0),
        ("other", "plain"): ("classic", True, 0),
    }  # fmt: skip
    assert rows["/", "prio"].arguments == '{"x-max-priority": 3, "x-message-ttl": 60000}'
    (stream,) = load(str(node), view="queues", queueType="stream").collect()
    assert (stream.queue, stream.segments, stream.maxOffset) == ("stream", 1, 0)
    (one,) = load(str(node), view="queues", queueType="quorum").collect()
    assert (one.queue, one.members, one.inDoubt) == ("quorum", 1, 0)


def test_the_view_of_segments_says_what_is_garbage(load, snapshot) -> None:
    """Explains a node whose disk is full although its queues hold little."""
    path = snapshot("s7_gc_clean") / golden.DEFAULT_VHOST
    rows = load(str(path), view="segments").where("kind = 'message file'").collect()
    on_disk = {f"msg_store_persistent/{each.name}": each.stat().st_size for each in path.glob("*persistent/*.rdq")}
    assert {row.file: row.bytes for row in rows} == on_disk
    served = load(str(path), columns="guid,location,size").where("location = 'store'").distinct()
    held = served.selectExpr("sum(size) as s", "count(*) as n").collect()[0]
    live = sum(row.liveBytes for row in rows)
    assert sum(row.messages for row in rows) == held.n
    assert held.s < live <= held.s + 1000 * held.n
    assert all(row.liveBytes + row.garbageBytes == row.bytes for row in rows)
    assert sum(row.garbageBytes for row in rows) > 0


def test_the_view_of_damage(load, snapshot) -> None:
    assert load(str(snapshot("s1_mixed_clean_idle")), view="damage").count() == 0
    _, row = load(str(snapshot("s13_rdqbadmark_kill9")), view="damage").collect()
    assert (row.file, row.position, row.repairable) == ("msg_store_persistent/0.rdq", 0, True)
