"""Following a vhost while a node works: every message that stays is read once, whatever is moved meanwhile."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import CheckpointError, CorruptionError, DataLossError
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.queue.queue import Queue
from storage_core.rabbitmq.stream import tail as tails
from storage_core.rabbitmq.stream.snapshot import VhostStreamSnapshot
from storage_core.store import QueueKey, ScanPartition, ScanRequest
from storage_core.stream.offsets import StreamOffset, check_store, from_json, resumed
from tests.rabbitmq import golden

SMALL = Settings(
    queue_index_segment_entry_count=8,
    queue_index_max_journal_entries=40,
    queue_index_embed_msgs_below=60,
    msg_store_io_batch_size=4,
    msg_store_file_size_limit=2500,
    queue_explicit_gc_run_operation_threshold=2,
)
SEEDS = range(int(os.environ.get("MQSTORE_TRIALS", "6")))
COLUMNS = ("queue", "sequenceId", "body", "guid")


def planned(snapshot: VhostStreamSnapshot, positions: dict[QueueKey, int]) -> list[ScanPartition]:
    """The plan from `positions` on. Advances `positions` to the end."""
    ranges = {key: (positions.get(key, start), stop) for key, (start, stop) in snapshot.positions.items()}
    positions.update({key: max(start, stop) for key, (start, stop) in ranges.items()})
    return [
        pickle.loads(pickle.dumps(piece)) for piece in snapshot.plan_ranges(ScanRequest(columns=COLUMNS), ranges)
    ]  # fmt: skip


def rows(plan: list[ScanPartition]) -> list[tuple[str, int, bytes]]:
    return [(r["queue"], r["sequenceId"], r["body"]) for p in plan for b in p.read() for r in b.to_pylist()]


class Node:
    """Two queues of one vhost in use, and the messages that were published and acknowledged."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.queues = {name: Queue(str(root), name, SMALL) for name in ("one", "two")}
        self.published: dict[tuple[str, int], bytes] = {}
        self.acked: set[tuple[str, int]] = set()

    def work(self, acks: bool = True) -> None:
        name = self.chance.choice(("one", "two"))
        queue = self.queues[name]
        bodies = [
            f"{name} {len(self.published) + number} ".encode() + b"x" * self.chance.choice((3, 30, 400))
            for number in range(self.chance.randrange(1, 12))
        ]
        for number, body in zip(queue.publish_many(bodies).tolist(), bodies, strict=True):
            self.published[name, number] = body
        if acks and self.chance.random() < 0.6:
            taken = queue.fetch_many(self.chance.randrange(1, 14)).sequence_ids.tolist()
            gone = [number for number in taken if self.chance.random() < 0.8]
            queue.ack(gone)
            self.acked |= {(name, number) for number in gone}
        if self.chance.random() < 0.5:
            queue.sync()

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "HOLD_S", 0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("acks", [False, True], ids=["growing", "consumed"])
def test_what_stays_is_read_once_while_a_node_works(
    tmp_path: Path, seed: int, acks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "HOLD_S", 600.0)  # the node works, however slowly: no message is lost in a crash
    node = Node(tmp_path / "vhost", seed)
    node.work(acks)
    for queue in node.queues.values():
        queue.sync()
    found: list[tuple[str, int, bytes]] = []
    positions: dict[QueueKey, int] = {}
    waiting: list[ScanPartition] = []
    with open_store(str(tmp_path / "vhost")) as store, store.follow() as tail:
        for _ in range(40):
            waiting += planned(tail.look(), positions)
            if node.chance.random() < 0.6:  # else the node continues between the plan and the tasks
                found += rows(waiting)
                waiting = []
            node.work(acks)
        for queue in node.queues.values():
            queue.sync()
        monkeypatch.setattr(tails, "HOLD_S", 0.05)
        found += rows([*waiting, *planned(tail.settled(), positions)])
        node.close()
        found += rows(planned(tail.settled(), positions))
    assert len({row[:2] for row in found}) == len(found), "a message was read twice"
    assert all(node.published[row[:2]] == row[2] for row in found), "a message is not the one of its number"
    assert node.published.keys() - node.acked <= {row[:2] for row in found}, "a message that stayed was missed"
    for name in ("one", "two"):
        numbers = [row[1] for row in found if row[0] == name]
        assert numbers == sorted(numbers)
    if acks:
        assert len(node.acked) > 40


def test_an_idle_look_is_the_same_and_a_drained_queue_keeps_its_position(tmp_path: Path, quick: None) -> None:
    root = tmp_path / "vhost"
    queue = Queue(str(root), "one", SMALL)
    queue.publish_many([b"a" * 100] * 30)
    queue.sync()
    with open_store(str(root)) as store, store.follow() as tail:
        snapshot = tail.settled()
        assert tail.look() is snapshot
        offset = StreamOffset("rabbitmq", {}).moved({("one", 0): 30}, snapshot)
        queue.ack(queue.fetch_many(30).sequence_ids.tolist())
        queue.publish(b"transient", persistent=False)
        queue.sync()
        assert offset.seals[("one", 0)].startswith("29:")
        assert resumed(offset.positions, tail.settled(), "/s", True, offset.seals) == {("one", 0): 30}
        queue.close()
        assert resumed(offset.positions, tail.settled(), "/s", True, offset.seals) == {("one", 0): 30}


@pytest.mark.parametrize("name", ["1.qs", "1.qi"])
def test_a_message_of_version_2_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A working node lists a message before its file contains it, and creates a segment before writing its header."""
    root = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    (root / "recovery.dets").unlink()
    path = next(root.glob(f"queues/*/{name}"))
    whole, positions = path.read_bytes(), dict[QueueKey, int]()
    path.write_bytes(whole[: len(whole) // 2] if name == "1.qs" else b"")
    with open_store(str(root)) as store, store.follow() as tail:
        monkeypatch.setattr(tails, "HOLD_S", 999.0)
        before = rows(planned(tail.look(), positions))
        path.write_bytes(whole)
        found = before + rows(planned(tail.settled(), positions))
    with open_store(str(root)) as store, store.follow() as tail:
        assert found == rows(planned(tail.settled(), {}))
        assert 0 < len(before) < len(found)
        path.write_bytes(whole[: len(whole) // 2] if name == "1.qs" else b"")
        monkeypatch.setattr(tails, "HOLD_S", 0.05)
        with pytest.raises(CorruptionError, match=r"after the end of its \.qs|a header of"):
            planned(tail.settled(), {})


def test_a_queue_that_is_renumbered_is_a_loss_that_is_named(tmp_path: Path, quick: None) -> None:
    """A node that was killed assigns the sequence ids of an empty queue again."""
    root = tmp_path / "vhost"

    def published(count: int) -> None:
        queue = Queue(str(root), "one", SMALL)
        queue.publish_many([b"a" * 100] * count)
        queue.sync()
        shutil.copytree(root, tmp_path / "copy")
        queue.close()
        shutil.rmtree(root)
        (tmp_path / "copy").rename(root)

    published(30)
    with open_store(str(root)) as store, store.follow() as tail:
        offset = StreamOffset("rabbitmq", {}).moved({("one", 0): 20}, tail.settled())
        offset = from_json(offset.to_json(), "rabbitmq", "/s")
        drained = offset.moved({("one", 0): 30}, tail.settled())
    shutil.rmtree(root)
    published(10)
    with open_store(str(root)) as store, store.follow() as tail:
        snapshot = tail.settled()
        empty = from_json({**offset.to_json(), "seals": {"one": {"0": "-1"}}}, "rabbitmq", "/s")
        with pytest.raises(DataLossError, match=r"one/0 was renumbered, the checkpoint is at 20; .*failOnDataLoss"):
            resumed(empty.positions, snapshot, "/s", True, empty.seals)
        assert resumed(empty.positions, snapshot, "/s", False, empty.seals) == {("one", 0): 0}
    shutil.rmtree(root)
    published(60)
    other = pytest.raises(CheckpointError, match="message 29 of one/0 is not the one that was read")
    with open_store(str(root)) as store, store.follow() as tail:
        snapshot = tail.settled()
        with other:
            check_store(drained, snapshot, "/s")
        with pytest.raises(DataLossError, match=r"one/0 was renumbered, the checkpoint is at 30; .*failOnDataLoss"):
            resumed(drained.positions, snapshot, "/s", True, drained.seals)
        assert resumed(drained.positions, snapshot, "/s", False, drained.seals) == {("one", 0): 0}


def test_a_message_that_is_in_no_file_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "vhost"
    queue = Queue(str(root), "one", SMALL)
    queue.publish_many([b"a" * 10, b"b" * 500, b"c" * 10])
    queue.sync()
    with open_store(str(root)) as store, store.follow() as tail:
        shutil.copytree(root, tmp_path / "copy")
        file = next((root / "msg_store_persistent").glob("*.rdq"))
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) - 9])
        assert tail.look().positions == {("one", 0): (0, 1)}
        file.write_bytes(whole)
        assert tail.look().positions == {("one", 0): (0, 3)}
    queue.close()
    monkeypatch.setattr(tails, "HOLD_S", 0.05)
    file = next((tmp_path / "copy" / "msg_store_persistent").glob("*.rdq"))
    file.write_bytes(whole[: len(whole) - 9])
    with open_store(str(tmp_path / "copy")) as store, store.follow() as tail:
        positions: dict[QueueKey, int] = {}
        assert [row[1] for row in rows(planned(tail.settled(), positions))] == [0, 2], "as a node's start would"
        assert positions == {("one", 0): 3}


def test_priorities_have_positions_of_their_own(tmp_path: Path, quick: None) -> None:
    root = tmp_path / "vhost"
    with open_store(str(root), "rabbitmq") as store, store.queue("prio", max_priority=2) as queue:
        for number in range(9):
            queue.publish(f"{number}".encode(), priority=number % 3)
    with open_store(str(root)) as store, store.follow() as tail:
        snapshot = tail.settled()
        assert set(snapshot.positions) == {("prio", 0), ("prio", 1), ("prio", 2)}
        request = ScanRequest(columns=COLUMNS)
        starts = snapshot.starts(request)
        assert [row[2] for row in rows(planned(snapshot, starts))] == [
            b"2",
            b"5",
            b"8",
            b"1",
            b"4",
            b"7",
            b"0",
            b"3",
            b"6",
        ]


def test_a_journal_that_is_rewritten_is_not_taken_for_the_old_one(tmp_path: Path, quick: None) -> None:
    root = tmp_path / "vhost"
    queue = Queue(str(root), "one", SMALL)
    queue.publish_many([b"old %d" % number for number in range(8)])
    queue.sync()
    with open_store(str(root)) as store, store.follow() as tail:
        plan = planned(tail.settled(), {})
        for _ in range(4):
            queue.publish_many([b"new %d" % number for number in range(8)])
            queue.sync()
            assert [row[2] for row in rows(plan)] == [b"old %d" % number for number in range(8)]
    queue.close()
