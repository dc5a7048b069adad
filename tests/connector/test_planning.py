"""Planning over one and several stores, with in-memory stores and without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import storage_core
from connector import kafka_layout, planning
from connector.planning import Load, shares
from storage_core.errors import OptionError, UnsupportedFormatError
from storage_core.option_table import read_options
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, Scan, ScanRequest
from tests.connector.fake_store import QUEUES_VIEW, SCHEMA, FakeStore, door
from tests.rabbitmq import golden, quorum_golden


@pytest.fixture
def stores(monkeypatch):
    def put(*stores: FakeStore) -> list[FakeStore]:
        find_stores, open_store = door(stores)
        monkeypatch.setattr(storage_core, "find_stores", find_stores)
        monkeypatch.setattr(storage_core, "open_store", open_store)
        return list(stores)

    return put


def planned(path: str = "/data", columns: tuple[str, ...] | None = None, **options: str):
    with Load((path,), read_options(options)) as load:
        return load.plan(columns or tuple(load.available().names))


def rows(partitions) -> pa.Table:
    return pa.Table.from_batches(
        [batch for partition in partitions for batch in pickle.loads(pickle.dumps(partition)).read()]
    )


def test_the_request_says_what_the_options_say(stores) -> None:
    (store,) = stores(FakeStore("/data/a", {("orders", 0): 3}))
    planned(
        columns=("topic", "body"),
        topic="orders",
        startingOffsets='{"orders": {"0": 1}}',
        endingOffsets="last:2",
        startingTimestamp="5",
        endingTimestamp="9",
        scan="log",
        mode="permissive",
        verifyCrc="false",
        decompress="false",
        failOnDataLoss="false",
        useIndex="false",
        minPartitions="2",
        maxRecordsPerPartition="7",
        maxBytesPerPartition="1k",
        recovery="none",
        commitLogPath="/log",
    )
    (request,) = store.requests
    assert request.columns == ("topic", "body")
    assert request.topics == ("orders",)
    assert request.start == OffsetBound(EARLIEST, {("orders", 0): 1})
    assert request.stop == OffsetBound(LATEST, last=2)
    assert (request.start_ms, request.stop_ms) == (5, 9)
    assert (request.scan, request.mode) == (Scan.LOG, Mode.PERMISSIVE)
    assert (request.verify_crc, request.decompress, request.fail_on_data_loss, request.use_index) == (False,) * 4
    assert (request.min_partitions, request.max_records_per_partition, request.max_bytes_per_partition) == (2, 7, 1024)
    assert request.store_name == "a"
    assert store.opened_with == {"recovery": "none", "commitLogPath": "/log"}
    assert store.closed


def test_a_small_store_is_one_partition_by_default_and_many_when_asked(stores, monkeypatch) -> None:
    monkeypatch.setattr(planning, "driver_cores", lambda: 8)
    (store,) = stores(FakeStore("/data/a", {("orders", 0): 15}))
    assert len(planned()) == 1
    assert len(planned(minPartitions="5")) == 5
    store.counts = {("orders", 0): 64}
    assert len(planned()) == 4
    store.counts = {("orders", 0): 1600}
    assert len(planned()) == 8


def test_rows_of_several_stores_tell_the_store(stores) -> None:
    stores(FakeStore("/data/x/a", {("orders", 0): 4}), FakeStore("/data/b", {("orders", 0): 6}))
    found = rows(planned())
    assert found.group_by("store").aggregate([([], "count_all")]).sort_by("store").to_pydict() == {
        "store": ["b", "x/a"],
        "count_all": [6, 4],
    }
    assert rows(planned("/data/x")).column("store").unique().to_pylist() == ["a"]


def test_partitions_are_shared_by_size(stores) -> None:
    stores(FakeStore("/data/a", {("t", 0): 90}), FakeStore("/data/b", {("t", 0): 10}))
    partitions = planned(minPartitions="10")
    assert [sum(p.store_path == path for p in partitions) for path in ("/data/a", "/data/b")] == [9, 1]
    assert rows(partitions).num_rows == 100


def test_shares() -> None:
    assert shares(10, [90, 10]) == [9, 1]
    assert shares(2, [1, 1000]) == [1, 2]
    assert shares(4, [0, 0]) == [2, 2]
    assert shares(3, [0, 5]) == [1, 3]


def test_each_store_is_asked_for_the_topics_it_has(stores) -> None:
    a, b, c = stores(
        FakeStore("/d/a", {("x", 0): 1}),
        FakeStore("/d/b", {("x", 0): 1, ("y", 0): 1}),
        FakeStore("/d/c", {("z", 0): 1}),
    )
    assert rows(planned("/d", topic="x,y")).num_rows == 3
    assert [store.requests[0].topics for store in (a, b)] == [("x",), ("x", "y")]
    assert c.requests == []
    with pytest.raises(OptionError) as caught:
        planned("/d", topic="x,yy")
    assert str(caught.value) == (
        "OptionError: option 'topic' = 'yy': is in none of the 3 stores; did you mean y? The topics are x, y, z"
    )


def test_assignments_and_offsets_of_several_stores(stores) -> None:
    a, b = stores(FakeStore("/d/a", {("x", 0): 5}), FakeStore("/d/b", {("x", 0): 5}))
    planned("/d", assign='{"b": {"x": [0]}}', startingOffsets='{"b": {"x": {"0": 2}}}')
    assert a.requests == []
    assert b.requests[0].assign == (("x", 0),)
    assert b.requests[0].start.offsets == {("x", 0): 2}


def test_a_pattern_selects(stores) -> None:
    stores(FakeStore("/d/a", {("x1", 0): 5, ("y", 0): 7}), FakeStore("/d/b", {("x2", 0): 1}))
    assert rows(planned("/d", topicPattern=r"x\d")).num_rows == 6


def test_the_kafka_layout_refuses_stores_with_a_common_topic(stores) -> None:
    stores(FakeStore("/d/a", {("x", 0): 5, ("y", 0): 7}), FakeStore("/d/b", {("x", 0): 1}))
    with pytest.raises(OptionError) as caught:
        planned("/d", layout="kafka")
    assert str(caught.value) == (
        "OptionError: option 'layout' = 'kafka': topic x is in the stores a and b, and Kafka's columns do not name "
        "the store; load the stores one by one, choose other topics, or use layout=native"
    )
    assert rows(planned("/d", layout="kafka", topic="y")).num_rows == 7
    with pytest.raises(OptionError):
        planned("/d", layout="kafka", topicPattern="x|y")


def test_the_kafka_layout_refuses_queues_of_one_name(stores) -> None:
    stores(FakeStore("/d/a", {("x", 0): 5, ("y", 0): 7}, repeated=frozenset({"x"})))
    with pytest.raises(OptionError) as caught:
        planned("/d/a", layout="kafka")
    assert str(caught.value) == (
        "OptionError: option 'layout' = 'kafka': several queues are called x, and Kafka's columns do not name their "
        "virtual host; choose one with the option vhost, choose other queues, or use layout=native"
    )
    assert rows(planned("/d/a", topic="x")).num_rows == 5
    assert rows(planned("/d/a", layout="kafka", topic="y")).num_rows == 7


def test_two_engines_in_one_load(stores) -> None:
    a, b = stores(FakeStore("/d/a", {}), FakeStore("/d/b", {}, engine="rabbitmq"))
    with pytest.raises(UnsupportedFormatError) as caught:
        planned("/d")
    assert str(caught.value) == (
        "UnsupportedFormatError: /d/b (rabbitmq) and /d/a (rocketmq): stores of two engines have different columns; "
        "load one of them, or choose with the option 'engine'"
    )
    assert a.closed
    assert b.closed


def test_one_commit_log_path_for_several_stores(stores) -> None:
    stores(FakeStore("/d/a", {}), FakeStore("/d/b", {}))
    with pytest.raises(OptionError, match="goes with one store, and here are 2: /d/a, /d/b; load one at a time"):
        planned("/d", commitLogPath="/log")


def test_warnings_are_reported_once_with_their_store(stores, capsys) -> None:
    stores(FakeStore("/d/a", {("x", 0): 1}, notes=("7 bytes are cut",)), FakeStore("/d/b", {("y", 0): 1}))
    planned("/d", minPartitions="2")
    assert capsys.readouterr().err == "mqstore: a: 7 bytes are cut\n"
    planned("/d/a", scan="log")
    assert capsys.readouterr().err == ""
    planned("/d/a", layout="kafka", **{"kafka.bootstrap.servers": "h", "kafka.group.id": "g"})
    assert capsys.readouterr().err == (
        "mqstore: layout=kafka ignores these options of the Kafka source: kafka.bootstrap.servers, kafka.group.id\n"
        "mqstore: a: 7 bytes are cut\n"
    )


def test_a_view_of_one_store_and_of_several(stores) -> None:
    stores(FakeStore("/d/a", {("x", 0): 5, ("y", 3): 7}), FakeStore("/d/b", {("x", 0): 1}))
    with Load(("/d/a",), read_options({"view": "queues"})) as load:
        assert load.available() == QUEUES_VIEW
    assert rows(planned("/d", view="queues")).to_pylist() == [
        {"topic": "x", "queueId": 0, "maxOffset": 5, "store": "a"},
        {"topic": "y", "queueId": 3, "maxOffset": 7, "store": "a"},
        {"topic": "x", "queueId": 0, "maxOffset": 1, "store": "b"},
    ]
    assert rows(planned("/d/a", ("maxOffset",), view="queues", topic="y")).to_pylist() == [{"maxOffset": 7}]
    assert rows(planned("/d/a", ("topic",), view="queues", topicPattern="x.*")).to_pylist() == [{"topic": "x"}]
    assert rows(planned("/d/a", ("topic",), view="queues", assign='{"y": [3], "x": [1]}')).to_pylist() == [
        {"topic": "y"}
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingOffsets", "last:3"), ("endingOffsets", "last:3"), ("startingTimestamp", "1"), ("endingTimestamp", "1"),
     ("layout", "kafka"), ("scan", "log")],
)  # fmt: skip
def test_a_view_refuses_what_it_has_no_column_for(stores, name: str, value: str) -> None:
    stores(FakeStore("/d/a", {("x", 0): 5}))
    with pytest.raises(OptionError) as caught:
        planned("/d/a", view="queues", **{name: value})
    assert str(caught.value) == (
        f"OptionError: option 'view' = 'queues': takes no option {name}; its columns are topic, queueId, maxOffset"
    )


def test_the_kafka_layout_reads_native_columns(stores) -> None:
    (store,) = stores(FakeStore("/d/a", {("x", 2): 4}))
    found = rows(planned("/d/a", layout="kafka", includeHeaders="true"))
    assert found.column_names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert found.slice(1, 2).to_pylist() == [
        {"key": b"k1", "value": b"body1", "topic": "x", "partition": 2, "offset": 1,
         "timestamp": found["timestamp"][1].as_py(), "timestampType": 1, "headers": None},
        {"key": None, "value": b"body2", "topic": "x", "partition": 2, "offset": 2,
         "timestamp": found["timestamp"][2].as_py(), "timestampType": 1,
         "headers": [{"key": "a", "value": "ä".encode()}]},
    ]  # fmt: skip
    assert rows(planned("/d/a", ("timestampType",), layout="kafka")).to_pydict() == {"timestampType": [1] * 4}
    assert store.requests[-1].columns == ("queueOffset",)


@pytest.mark.parametrize(
    "found", [[{"a": "1", "b": "2"}, {"b": "3"}], [{"a": "1"}, {}, None, {"c": "d"}], [{}, {}], []]
)
def test_kafkas_headers_are_the_properties(found: list[dict[str, str] | None]) -> None:
    maps = pa.array([None if row is None else list(row.items()) for row in found], pa.map_(pa.string(), pa.string()))
    wanted = [[{"key": name, "value": text.encode()} for name, text in (row or {}).items()] or None for row in found]
    for start in range(len(found) + 1):
        batch = pa.RecordBatch.from_arrays([maps.slice(start)], names=["properties"])
        headers = kafka_layout.from_native(batch, ("headers",), "rocketmq").column(0)
        headers.validate(full=True)
        assert headers.to_pylist() == wanted[start:]


@pytest.mark.parametrize(
    ("columns", "engine", "hidden"),
    [
        (("key", "headers"), "rocketmq", "KEYS"),
        (("key",), "rocketmq", None),
        (("key", "headers"), "rabbitmq", None),
    ],
)
def test_the_key_is_no_header(columns: tuple[str, ...], engine: str, hidden: str | None) -> None:
    request = kafka_layout.native_request(ScanRequest(), columns, engine)
    assert (request.columns, request.hidden_property) == (kafka_layout.native_columns(columns, engine), hidden)


def test_the_native_columns_come_as_the_engine_has_them(stores) -> None:
    stores(FakeStore("/d/a", {("x", 2): 4}))
    with Load(("/d/a",), read_options({})) as load:
        assert load.available() == SCHEMA


def test_a_view_asks_each_store_for_the_topics_it_has(stores) -> None:
    stores(FakeStore("/d/a", {("x", 0): 5}), FakeStore("/d/b", {("x", 0): 1, ("y", 0): 2}))
    assert rows(planned("/d", ("maxOffset", "store"), view="queues", topic="y")).to_pylist() == [
        {"maxOffset": 2, "store": "b"}
    ]
    with pytest.raises(OptionError) as caught:
        planned("/d", view="queues", topic="z")
    assert str(caught.value) == "OptionError: option 'topic' = 'z': is in none of the 2 stores; the topics are x, y"


def test_the_views_of_a_node_have_the_columns_of_all_its_queues(tmp_path: Path) -> None:
    node = tmp_path / "node"
    quorum_golden.unpack("q08_dead_letter_at_most_once", node)
    classic = golden.unpack("s1_mixed_clean_idle", tmp_path / "classic")
    (node / "msg_stores").mkdir()
    classic.rename(node / "msg_stores" / "vhosts")
    columns = ("queue", "type", "ready", "lastIndex")
    one, two = (rows(planned(str(node), columns, view="queues", queue=name)).to_pylist() for name in ("src", "a.small"))
    assert one == [{"queue": "src", "type": "quorum", "ready": 14, "lastIndex": 37}]
    assert two == [{"queue": "a.small", "type": "classic", "ready": two[0]["ready"], "lastIndex": None}]
    with Load((str(node),), read_options({"view": "raft"})) as load:
        assert [piece.store_path for piece in load.plan(("queue",))] == [str(node / "quorum" / "qlab@localhost")]
