"""What a request selects, and names of queues and vhosts: options, ranges, patterns, missing stubs, wrong requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    OptionError,
    StoreClosedError,
    StoreNotFoundError,
)
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import looks_like_store, open_store
from storage_core.store import EARLIEST, LATEST, OffsetBound, Predicate, Scan, ScanRequest
from tests.rabbitmq import golden


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path_factory.mktemp("s1")) / golden.DEFAULT_VHOST


def ids(store: Path, **request: Any) -> list[int]:
    found: list[int] = golden.table(store, columns=("sequenceId",), **request)["sequenceId"].to_pylist()
    return found


def queues(store: Path, **request: Any) -> set[str]:
    return set(golden.table(store, columns=("queue",), **request)["queue"].to_pylist())


SMALL = ("a.small", 0)


def test_queues_by_name_and_pattern(store: Path) -> None:
    assert queues(store, topics=("a.small", "h.f2")) == {"a.small", "h.f2"}
    assert queues(store, topic_pattern="h\\..*") == {"h.f1", "h.f2"}
    assert queues(store, assign=(SMALL,)) == {"a.small"}
    assert queues(store, predicates=(Predicate("queue", "in", ("a.small", "nothing")),)) == {"a.small"}
    assert queues(store, predicates=(Predicate("vhost", "=", "other"),)) == set()
    everything = queues(store)
    assert queues(store, predicates=(Predicate("vhost", "=", "/"),)) == everything
    assert queues(store, predicates=(Predicate("queue", "!=", "a.small"),)) == everything - {"a.small"}


def test_sequence_ids(store: Path) -> None:
    everything = ids(store, topics=("a.small",))
    assert (len(everything), everything[0], everything[-1]) == (39, 17, 59)
    start = OffsetBound(EARLIEST, {SMALL: 30})
    stop = OffsetBound(LATEST, {SMALL: 40})
    assert ids(store, topics=("a.small",), start=start, stop=stop) == [i for i in everything if 30 <= i < 40]
    # A start below the first id is no loss: ids have gaps wherever messages were acknowledged.
    assert ids(store, topics=("a.small",), start=OffsetBound(EARLIEST, {SMALL: 0})) == everything
    assert ids(store, topics=("a.small",), start=OffsetBound(LATEST)) == []
    assert ids(store, topics=("a.small",), stop=OffsetBound(EARLIEST)) == []
    assert ids(store, topics=("a.small",), start=OffsetBound(last=5)) == everything[-5:]
    assert ids(store, topics=("a.small",), start=OffsetBound(last=1000)) == everything
    assert ids(store, topics=("a.small",), start=OffsetBound(last=0)) == []
    assert ids(store, topics=("a.small",), stop=OffsetBound(LATEST, last=5)) == everything[:-5]
    assert ids(store, topics=("a.small",), start=OffsetBound(last=9), stop=OffsetBound(last=5)) == everything[-9:-5]
    assert ids(store, topics=("a.small",), stop=OffsetBound(last=1000)) == []
    # Filters apply after offsets: those of the last five that the filter selects.
    assert ids(
        store, topics=("a.small",), start=OffsetBound(last=5), predicates=(Predicate("sequenceId", "<", 58),)
    ) == [i for i in everything[-5:] if i < 58]
    ranges = (Predicate("sequenceId", ">=", 50), Predicate("sequenceId", "<", 55), Predicate("sequenceId", "!=", 51))
    assert ids(store, topics=("a.small",), predicates=ranges) == [i for i in everything if i in {50, 52, 53, 54}]
    assert ids(store, topics=("a.small",), predicates=(Predicate("sequenceId", "in", (59, 1, None)),)) == [59]


def test_the_last_messages_of_a_priority_queue_are_the_last_delivered(store: Path) -> None:
    everything = golden.table(store, topics=("e.prio",), columns=("guid",))["guid"].to_pylist()
    found = golden.table(store, topics=("e.prio",), columns=("guid",), start=OffsetBound(last=12))["guid"].to_pylist()
    assert found == everything[-12:]
    both = {"start": OffsetBound(last=12), "stop": OffsetBound(LATEST, last=3)}
    assert golden.table(store, topics=("e.prio",), columns=("guid",), **both)["guid"].to_pylist() == everything[-12:-3]


def test_offsets_after_the_end_without_fail_on_data_loss(store: Path) -> None:
    everything = ids(store, topics=("a.small",))
    options = {"topics": ("a.small",), "fail_on_data_loss": False}
    assert ids(store, start=OffsetBound(EARLIEST, {SMALL: 99_999}), **options) == []
    assert ids(store, stop=OffsetBound(LATEST, {SMALL: 99_999}), **options) == everything
    assert ids(store, start=OffsetBound(EARLIEST, {SMALL: 0}), **options) == everything


def test_the_python_door(store: Path) -> None:
    with open_store(str(store)) as opened:
        listed = {queue.topic: (queue.queue_id, queue.start, queue.stop) for queue in opened.queues()}
        assert listed["a.small"] == (0, 17, 60)
        assert listed["n.emptied"] == (0, 8, 8)
        assert list(listed) == sorted(listed)
        batches = list(opened.read("a.small", 0, 20, 25))
        assert [i for batch in batches for i in batch.column("sequenceId").to_pylist()] == [
            i for i in range(20, 25) if i in ids(store, topics=("a.small",))
        ]
        assert opened.name == golden.DEFAULT_VHOST
    with pytest.raises(StoreClosedError):
        opened.snapshot()


@pytest.mark.parametrize(
    ("request_fields", "error", "text"),
    [
        ({"topics": ("a.smal",)}, OptionError, "there is no such queue; did you mean a.small"),
        ({"assign": (("a.small", 3),)}, OptionError, "a RabbitMQ queue is one queue, with the id 0"),
        ({"columns": ("bodi",)}, OptionError, "there is no such column; did you mean body"),
        ({"scan": Scan.LOG}, OptionError, "RabbitMQ stores have no log"),
        ({"start_ms": 1}, OptionError, "RabbitMQ keeps no store time"),
        ({"keys": ("k",)}, OptionError, "RabbitMQ stores have no key index"),
        ({"message_ids": ("k",)}, OptionError, "RabbitMQ stores have no id index"),
        ({"tags": ("k",)}, OptionError, "RabbitMQ messages have no tags"),
        ({"start": OffsetBound(group="g")}, OptionError, "RabbitMQ has no consumer groups"),
        (
            {"start": OffsetBound(EARLIEST, {SMALL: 61})},
            OffsetOutOfRangeError,
            "startingOffsets 61 is greater than the end of the queue, 60; .* or failOnDataLoss=false",
        ),
        (
            {"start": OffsetBound(EARLIEST, {SMALL: 50}), "stop": OffsetBound(LATEST, {SMALL: 40})},
            OffsetOutOfRangeError,
            "start offset 50 is greater than end offset 40",
        ),
        ({"stop": OffsetBound(LATEST, {("x", 0): 1})}, OptionError, "there is no such queue"),
        ({"start": OffsetBound(EARLIEST, {("a.small", 1): 1})}, OptionError, "'a.small/1': a RabbitMQ queue is one"),
        ({"start": OffsetBound(last=2), "stop": OffsetBound(LATEST, last=5)}, OffsetOutOfRangeError, "start offset"),
        (
            {"topics": ("e.prio",), "start": OffsetBound(last=2), "stop": OffsetBound(LATEST, last=5)},
            OffsetOutOfRangeError,
            "queue e.prio: start offset",
        ),
    ],
)
def test_wrong_requests(request_fields: dict[str, Any], error: type[Exception], text: str, store: Path) -> None:
    with pytest.raises(error, match=text) as raised:
        golden.table(store, **request_fields)
    assert "\n" not in str(raised.value)


def test_queues_without_their_stubs(tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    rows = golden.table(path, topics=("e.prio",), columns=("sequenceId", "body"))
    for stub in path.rglob(".queue_name"):
        stub.unlink()
    directory = paths.queue_directory(b"/", b"a.small")
    assert directory in queues(path)
    assert queues(path, topics=("a.small",)) == {"a.small"}
    assert golden.table(path, topics=("e.prio",), columns=("sequenceId", "body")).equals(rows)


@pytest.mark.parametrize("vhost_file", [True, False])
def test_every_flipped_bit_of_a_stub(vhost_file: bool, tmp_path: Path) -> None:
    """A node identifies the queue by its folder's hash: no row has another name, and a wrong stub is reported."""
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    if not vhost_file:
        (path / ".vhost").unlink()
    directory = paths.queue_directory(b"/", b"a.small")
    stub = path / "queues" / directory / ".queue_name"
    rows = golden.table(path, topics=("a.small",), columns=("sequenceId", "body"))
    file, of_vhost = f"queues/{directory}/.queue_name", stub.read_bytes().index(b"/")
    whole = stub.read_bytes()
    for bit in range(8 * len(whole)):
        stub.write_bytes((int.from_bytes(whole, "little") ^ 1 << bit).to_bytes(len(whole), "little"))
        with open_store(str(path)) as store:
            snapshot = store.snapshot()
            reasons = [finding.reason for finding in store.verify() if finding.file == file]
            assert bool(reasons) == (bit // 8 != of_vhost)
            assert [text.startswith(f"{path}/{file} ") for text in snapshot.warnings()] == [True] * len(reasons)
            assert ("a.small" in {info.topic for info in snapshot.queues()}) == (not reasons)
        if bit % 16 == 0:
            assert golden.table(path, topics=("a.small",), columns=("sequenceId", "body")).equals(rows)


def test_the_vhost_without_its_file(tmp_path: Path) -> None:
    vhosts = golden.unpack("s9_vhosts_kill9", tmp_path)
    for path in sorted(vhosts.iterdir()):
        name = (path / ".vhost").read_text()
        (path / ".vhost").unlink()
        with open_store(str(path)) as store:
            assert store.vhost == name
        (path / ".vhost").write_bytes(b"\x81" * 5000)  # longer than any name
        with open_store(str(path)) as store:
            assert store.vhost == name
    moved = vhosts / "backup"
    (vhosts / golden.DEFAULT_VHOST).rename(moved)
    rows = golden.table(moved, columns=("vhost", "store"), store_name="mine").to_pylist()
    assert {(row["vhost"], row["store"]) for row in rows} == {("/", "mine")}


def test_a_missing_config_means_16384(tmp_path: Path) -> None:
    path = golden.unpack("s6_2048_clean_busy", tmp_path) / golden.DEFAULT_VHOST
    (path / ".config").unlink()
    with open_store(str(path)) as store:
        assert store.segment_entry_count == 16384
    (path / ".config").write_bytes(b"{segment_entry_count, many}.")
    with pytest.raises(CorruptionError, match=r"\.config at 0: segment_entry_count 'many' is not 1 to 10000000"):
        open_store(str(path))


def test_what_is_no_store(tmp_path: Path) -> None:
    assert not looks_like_store(str(tmp_path))
    assert not looks_like_store(str(tmp_path / "nothing"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFoundError, match="is not a RabbitMQ vhost directory"):
        open_store(str(tmp_path))
    path = golden.unpack("s7_gc_clean", tmp_path) / golden.DEFAULT_VHOST
    with pytest.raises(OptionError, match="close ones are recovery"):
        open_store(str(path), {"recoverie": "none"})
    with pytest.raises(OptionError, match="it is one of auto, none"):
        open_store(str(path), {"recovery": "4.9"})


def test_views(store: Path, tmp_path: Path) -> None:
    with open_store(str(store)) as opened:
        with pytest.raises(OptionError, match="The views of a RabbitMQ store are messages, queues, segments, damage"):
            opened.view_schema("topics")
        with pytest.raises(OptionError, match="did you mean queues"):
            opened.view_schema("queue")
        listed = {row["queue"]: row for row in next(opened.view("queues")).to_pylist()}
        assert next(opened.view("queues")).schema == opened.view_schema("queues")
        chosen = next(opened.view("queues", ScanRequest(topics=("h.f1",)))).to_pylist()
    status = {queue["name"]: queue for queue in golden.truth("s1_mixed_clean_idle")["queues"]}
    for name, row in listed.items():
        messages = status[name]["messages"]
        assert (row["messages"], row["bytes"]) == (len(messages), sum(m["body_size"] for m in messages))
        assert row["unacknowledged"] == sum(m["redelivered"] for m in messages)
        assert sorted(row["directories"]) == sorted(d for d in status[name]["dirs"] if d in row["directories"])
    assert [row["queue"] for row in chosen] == ["h.f1"]

    path = golden.unpack("s7_gc_clean", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(path)) as opened:
        files = next(opened.view("segments")).to_pylist()
    messages = {row["file"]: row for row in files if row["kind"] == "message file"}
    assert len(messages) == 10
    # Valid sizes as the node's own table has them.
    assert messages["msg_store_persistent/12.rdq"]["liveBytes"] == 22018
    assert messages["msg_store_persistent/15.rdq"]["garbageBytes"] == 24121
    for row in messages.values():
        assert row["liveBytes"] + row["garbageBytes"] == row["bytes"] == (path / row["file"]).stat().st_size
    assert sum(row["messages"] for row in messages.values()) == 30


def test_the_folder_tells_the_vhost_of_another_one_s_file(tmp_path: Path) -> None:
    vhosts = golden.unpack("s9_vhosts_kill9", tmp_path)
    for path in sorted(vhosts.iterdir()):
        name = (path / ".vhost").read_text()
        (path / ".vhost").write_text("another")
        with open_store(str(path)) as store:
            assert store.vhost == name
            found = [finding for finding in store.verify() if finding.file == ".vhost"]
            assert [(each.kind, each.effect) for each in found] == [("unexpected file", "rewrites it")]
            assert name in found[0].reason
            store.repair()
        assert not (path / ".vhost").exists()
        moved = path.rename(path.parent / f"copy of {path.name}")
        (moved / ".vhost").write_text("another")
        with open_store(str(moved)) as store:  # nothing shows that it is wrong
            assert store.vhost == "another"
