"""Quorum queues of real nodes: what a restarted node delivered, and what is refused."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storage_core.errors import CorruptionError, OptionError, UnsupportedFormatError
from storage_core.formats.rabbitmq.erlang import external_term
from storage_core.formats.rabbitmq.message import basic_message, message_container
from storage_core.formats.rabbitmq.quorum import log_entry
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.disk import raft_log
from storage_core.rabbitmq.disk.raft_log import read_log
from storage_core.rabbitmq.quorum import replay
from storage_core.rabbitmq.quorum.machine.message_facts import (
    MessageFacts,
    message_facts,
    noted_facts,
    sized_facts,
)
from storage_core.rabbitmq.quorum.message_table import MessageTable
from storage_core.rabbitmq.quorum.snapshot import QuorumSnapshot, Reading
from storage_core.store import Mode, OffsetBound, Predicate, ScanRequest
from tests.golden.archive import fingerprint
from tests.rabbitmq import quorum_golden as golden
from tests.rabbitmq.containers import random_terms

WHOLE = sorted(set(golden.NAMES) - {"q23_cluster_c1", "q24_wal_bad_middle", "v8_returned"})


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("name", WHOLE)
def test_what_the_restarted_node_delivered(name: str, partitions: int, tmp_path: Path) -> None:
    folder = golden.unpack(name, tmp_path)
    before = fingerprint(tmp_path)
    facts, expected = golden.truth(name)
    options = {"asOf": facts["drained_at_ms"]} if "drained_at_ms" in facts else {}
    found = golden.delivered(golden.rows(folder, options, min_partitions=partitions))
    if name == "q26_random_a":
        # Seven messages expired while the node was being drained, and reached this queue only then.
        assert len(expected["/", "rnd-dl"]) - len(found["/", "rnd-dl"]) == 7
        expected["/", "rnd-dl"] = expected["/", "rnd-dl"][: len(found["/", "rnd-dl"])]
    assert found == expected
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_kept_of_a_long_log(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are the same if the log is read three entries at a time and messages that left are dropped at once."""
    folder = golden.unpack(name, tmp_path)
    expected = golden.rows(folder)
    most = 0

    def keep(table: MessageTable, held: Iterable[int]) -> None:
        nonlocal most
        there = set(held)
        dropping(table, there)
        most = max(most, table.count)
        assert table.count <= len(there)

    dropping = MessageTable.retain_only
    monkeypatch.setattr(MessageTable, "retain_only", keep)
    monkeypatch.setattr(MessageTable, "is_full", True)
    monkeypatch.setattr(raft_log, "CHUNK", 3)
    monkeypatch.setattr(replay, "batch_ranges", lambda sizes: [(at, at + 3) for at in range(0, len(sizes), 3)])
    assert golden.rows(folder) == expected
    assert most


def test_bytes_are_counted_alike_in_any_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From version 8 on the limits of a queue count property lists: also in the window in which the version begins."""
    folder = golden.unpack("v8_giving_way", tmp_path)
    counted: list[set[tuple[int, int, int]]] = []
    add = MessageTable.add

    def note(table: MessageTable, rows: npt.NDArray[np.void]) -> None:
        counted[-1] |= {(int(row["file"]), int(row["position"]), int(row["counted"])) for row in rows}
        add(table, rows)

    monkeypatch.setattr(MessageTable, "add", note)
    for step in (1 << 20, 1):
        monkeypatch.setattr(replay, "batch_ranges", partial(_cut, step=step))
        counted.append(set())
        golden.rows(folder)
    assert counted[0] == counted[1]


def _cut(sizes: npt.NDArray[np.int64], step: int) -> list[tuple[int, int]]:
    return [(at, min(at + step, len(sizes))) for at in range(0, len(sizes), step)]


def test_one_disk_of_three(tmp_path: Path) -> None:
    """Both outcomes of the fixture: what the two other members deliver, and what this and another member deliver."""
    folder = golden.unpack("q23_cluster_c1", tmp_path)
    end, applied = golden.rows(folder), golden.rows(folder, {"commit": "applied"})
    assert (len(end), len(applied)) == (151, 126)
    both = golden.truth("q23_cluster_c1")[1]["/", "cq"]
    assert golden.delivered(applied)["/", "cq"] + golden.delivered(end)["/", "cq"] == both
    assert {row["committed"] for row in applied} == {True}
    assert [row["committed"] for row in end].count(None) == 25
    with open_store(str(folder)) as store:
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        (line,) = snapshot.warnings()
        assert "3 members" in line
        assert "25 log entries" in line


def test_a_log_damaged_in_the_middle(tmp_path: Path) -> None:
    folder = golden.unpack("q24_wal_bad_middle", tmp_path)
    with pytest.raises(CorruptionError) as caught:
        golden.rows(folder)
    assert str(caught.value) == (
        f"CorruptionError: {folder}/00000001.wal at 9269: queue w1: the checksum of a record does not fit, and more "
        "records follow; option mode=DROPMALFORMED leaves such messages out and reads what lies before"
    )
    before = golden.rows(folder, mode=Mode.DROPMALFORMED)
    assert [row["messageId"] for row in before if row["queue"] == "w1"][-1].startswith("w1-")
    shown = golden.rows(folder, mode=Mode.PERMISSIVE)
    assert len(shown) == len(before) + 2
    assert {row["position"] for row in shown if row["corruption"]} == {9269}
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
    assert (finding.file, finding.position) == ("00000001.wal", 9269)


def test_columns_of_the_log(tmp_path: Path) -> None:
    folder = golden.unpack("q04_unacked_returned", tmp_path)
    found = golden.rows(folder)
    assert [row["raftIndex"] for row in found] == [row["sequenceId"] for row in found]
    assert {row["raftTerm"] for row in found} == {1}
    assert {row["queueType"] for row in found} == {"quorum"}
    assert {row["status"] for row in found} == {"ready", "returned", "unacknowledged"}
    assert all(row["redelivered"] == (row["deliveryCount"] > 0) for row in found)
    assert all(row["persistent"] and row["enqueuedAt"].year == 2026 for row in found)
    with open_store(str(folder)) as store:
        (row,) = [row for batch in store.view("queues") for row in batch.to_pylist()]
        raft = [row for batch in store.view("raft") for row in batch.to_pylist()]
        segments = [row for batch in store.view("segments") for row in batch.to_pylist()]
    assert (row["messages"], row["members"], row["inDoubt"]) == (len(found), 1, 0)
    assert row["ready"] + row["unacknowledged"] == row["messages"]
    assert [row["raftIndex"] for row in raft] == list(range(len(raft)))
    assert {row["command"] for row in raft} >= {"noop", "enqueue", "requeue", "checkout", "settle", "down"}
    assert sum(row["messages"] for row in segments) == len(found)


def test_messages_that_consumers_annotated_or_delayed(tmp_path: Path) -> None:
    """Annotations become headers; delayed messages come last or, once they are due, count as returned."""
    folder = golden.unpack("v8_returned", tmp_path)
    found = golden.rows(folder, min_partitions=3)
    # Message 1 was returned and is held again, like those from 3 on; the start delays them like message 0, which failed
    # before, while message 2 is delayed for longer. No consumer had message 8.
    assert [row["body"].decode()[-1] for row in found] == [*"801345672"]
    assert [row["status"] for row in found] == ["ready", *["delayed"] * 8]
    headers = [
        {name: value for name, _, value in message["props"]["headers"] if name.startswith("x-opt")}
        for message in golden.delivered(found)["/", "returned"]
    ]
    assert headers[1:4] == [
        {"x-opt-text": "a"}, {"x-opt-text": "b", "x-opt-number": 5}, {"x-opt-text": "of the publisher"},
    ]  # fmt: skip
    later = golden.rows(folder, {"asOf": "2000000000000"})
    assert later == golden.rows(folder, {"asOf": "1700000000000000000"})
    assert [(row["body"].decode()[-1], row["status"]) for row in later[:3]] == [
        ("0", "returned"), ("2", "returned"), ("8", "ready"),
    ]  # fmt: skip
    with open_store(str(folder)) as store:
        (queue,) = [row for batch in store.view("queues") for row in batch.to_pylist()]
    assert (queue["messages"], queue["delayed"], queue["ready"]) == (9, 8, 1)


def test_the_files_of_entries_that_a_snapshot_keeps(tmp_path: Path) -> None:
    folder = golden.unpack("v8_random", tmp_path)
    with open_store(str(folder)) as store:
        files = [row for batch in store.view("segments") for row in batch.to_pylist()]
    assert sum(row["messages"] for row in files) == len(golden.rows(folder))
    assert all(row["garbageBytes"] >= 0 for row in files)


def test_selections(tmp_path: Path) -> None:
    folder = golden.unpack("q01_clean", tmp_path)
    plain = golden.rows(folder, topics=("plain",))
    assert len(plain) == 31
    assert golden.rows(folder, topics=("plain",), start=OffsetBound(last=3)) == plain[-3:]
    late = plain[10]["raftIndex"]
    chosen = golden.rows(folder, topics=("plain",), predicates=(Predicate("raftIndex", ">=", late),))
    assert chosen == plain[10:]
    assert golden.rows(folder, predicates=(Predicate("vhost", "=", "none"),)) == []
    two = golden.rows(folder, columns=("messageId", "deliveryCount"), topics=("plain",), max_records_per_partition=4)
    assert two == [{key: row[key] for key in ("messageId", "deliveryCount")} for row in plain]
    with open_store(str(folder)) as store:
        for partition in store.snapshot().plan(ScanRequest(topics=("plain",))):
            again = pickle.loads(pickle.dumps(partition))
            assert list(again.read()) == list(partition.read())


def test_what_is_refused(tmp_path: Path) -> None:
    folder = golden.unpack("q01_clean", tmp_path)
    with open_store(str(folder)) as store:
        with pytest.raises(UnsupportedFormatError, match="quorum queues are not written; write classic queues"):
            store.begin_job()
        with pytest.raises(OptionError, match="there is no such queue"):
            store.snapshot().plan(ScanRequest(topics=("plane",)))
    with pytest.raises(OptionError, match="it is one of end, applied"):
        open_store(str(folder), {"commit": "some"})


def test_another_machine_version(tmp_path: Path) -> None:
    """The first entry of a queue raises its machine to the version of its node."""
    folder = golden.unpack("q01_clean", tmp_path)
    (log,) = folder.glob("*.wal")
    data = bytearray(log.read_bytes())
    at = data.index(b"noop")
    version = at + data[at:].index(b"a\x02") + 1
    data[version] = 9
    sums = data.index(b"@", at - 64) + 3
    data[sums : sums + 4] = bytes(4)
    log.write_bytes(data)
    with pytest.raises(UnsupportedFormatError) as caught:
        golden.rows(folder)
    assert str(caught.value).endswith(
        ": plain has machine version 9 (RabbitMQ after 4.3); mqstore reads versions 2 to 8 (RabbitMQ 3.10 to "
        "4.3): consume it from a running node; queueType=classic and queueType=stream read other queues"
    )


@pytest.mark.parametrize(
    "name",
    ["q01_clean", "q07_snapshot_with_messages", "q13_ttl", "q26_random_a", "v3_random", "v5_random", "v8_random"],
)
def test_templates_against_the_decoder(name: str, tmp_path: Path) -> None:
    """Every entry that a template matches decodes to the same enqueue command."""
    folder = golden.unpack(name, tmp_path)
    snapshot = QuorumSnapshot(str(folder), "", Reading())
    taken = 0
    for queue in snapshot.directories:
        log = read_log(str(folder), queue.folder, snapshot.wals)
        parts = [
            (folder / log.files[entry["file"]]).read_bytes()[entry["position"] : entry["position"] + entry["size"]]
            for chunk in log.chunks()
            for entry in chunk
        ]
        buffer = np.frombuffer(b"".join(parts), np.uint8)
        stops = np.cumsum([len(part) for part in parts])
        starts = stops - [len(part) for part in parts]
        found = log_entry.find_enqueues(buffer, starts, stops)
        for row in np.flatnonzero(found.ok).tolist():
            _, meta, command, reply = external_term.decode(parts[row])
            if command[0] == "e":
                _, sequence, message, sizes = command
                publisher = reply[2]
            else:
                (name_of, publisher, sequence, message), sizes = command, (0, log_entry.NO_SIZE)
                assert name_of == "enqueue"
            assert (meta["ts"], sizes) == (found.times[row], (found.metadata[row], found.sizes[row]))
            if publisher == external_term.UNDEFINED:
                assert (sequence, found.publishers[row]) == (external_term.UNDEFINED, log_entry.NOBODY)
            else:
                assert sequence == found.sequences[row]
                assert publisher.raw == found.publisher_terms[found.publishers[row]]
            term = buffer[found.message_starts[row] : found.message_stops[row]].tobytes()
            assert external_term.decode(b"\x83" + term) == message
        taken += int(found.ok.sum())
    assert taken > 20


@pytest.mark.parametrize(("name", "version"), [("q01_clean", 2), ("v3_random", 3), ("v5_random", 5), ("v8_random", 8)])
def test_the_machine_version_of_a_queue(name: str, version: int, tmp_path: Path) -> None:
    with open_store(str(golden.unpack(name, tmp_path))) as store:
        assert {each for batch in store.view("queues") for each in batch["version"].to_pylist()} == {version}


def test_what_counts_in_a_container() -> None:
    """Only a container with relevant annotations is decoded; their names inside a body do not count."""
    content = (
        external_term.Atom("content"),
        60,
        external_term.Atom("none"),
        b"",
        external_term.Atom("p"),
        [b"\1p\3ttl"],
    )
    for noted, expected in (
        ({}, MessageFacts(6)), ({"p": 4, "ttl": "undefined"}, MessageFacts(6)), ({"p": 5}, MessageFacts(6, priority=5)),
        ({"ttl": 0, "delivery_count": 2}, MessageFacts(6, ttl=0, deliveries=2)),
    ):  # fmt: skip
        named = {
            external_term.Atom(name): external_term.Atom(value) if isinstance(value, str) else value
            for name, value in noted.items()
        }
        protocol = external_term.Atom(message_container.LEGACY)
        message = external_term.Atom(message_container.TAG), protocol, content, named
        assert sized_facts(external_term.encode(message), 6, 0) == expected
        assert message_facts(external_term.encode(message)) == expected
    assert sized_facts(b"\x83\1p", 6, 2) == MessageFacts(6, metadata=2)


def test_what_a_shape_says_of_a_container_is_what_it_says_alone() -> None:
    r, plain, others = random.Random(8), 0, 0
    for _ in range(60):
        terms = random_terms(r)
        stops = np.cumsum([len(term) for term in terms])
        starts = stops - [len(term) for term in terms]
        found = basic_message.locate(np.frombuffer(b"".join(terms), np.uint8), starts, stops)
        sizes, listed = found.body_stops - found.body_starts, found.property_stops - found.property_starts
        for row in np.flatnonzero(found.known).tolist():
            values = (int(column[row]) for column in (found.ttl, found.priority, found.deliveries))
            noted = noted_facts(int(sizes[row]), int(listed[row]), *values)
            assert noted == message_facts(terms[row])
            plain, others = plain + noted.plain, others + (not noted.plain)
    assert min(plain, others) > 500


def test_a_log_of_version_4(tmp_path: Path) -> None:
    """No files of 4.0.0 to 4.0.2 were available: entries of 4.0.5 with another version, whose discards have keys."""
    folder = golden.unpack("v5_giving_way", tmp_path)
    before, count = golden.rows(folder), 0
    for log in folder.glob("*.wal"):
        data = bytearray(log.read_bytes())
        for found in re.finditer(rb"\x83h\x03(?:w\x04|d\x00\x04)noop", bytes(data)):
            at = found.start()
            end = at + int.from_bytes(data[at - 20 : at - 16], "big")
            assert data[end - 2 : end] == b"a\x05"
            data[end - 1] = 4
            data[at - 24 : at - 20] = bytes(4)  # no checksum
            count += 1
        log.write_bytes(data)
    assert count
    assert golden.rows(folder) == before
    with open_store(str(folder)) as store:
        assert 4 in {each for batch in store.view("queues") for each in batch["version"].to_pylist()}
