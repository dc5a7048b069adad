"""Random histories of streams: what a real 3.10.8 node delivers after a kill or a stop is what we read before it.

`MQSTORE_HISTORIES` sets how many; without it none is run. A history continues with the streams of the previous one.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from storage_core.errors import MqStoreError
from tests.golden.archive import fingerprint
from tests.rabbitmq import stream_golden as golden
from tests.rabbitmq.quorum_golden import Message, Queue
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.stream_history import History, message_of, node_with_streams

# A client whose node was killed leaves its socket to the garbage collector.
LEFT = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.real, pytest.mark.timeout(0), LEFT]

SEED = int(os.environ.get("MQSTORE_SEED", "20261123"))
HISTORIES = int(os.environ.get("MQSTORE_HISTORIES", "0"))
OF_ONE_NODE, STEPS = 5, 40


def delivered(node: Node, streams: list[str], counts: dict[Queue, int]) -> dict[Queue, list[Message]]:
    """What the node delivers from each stream, in the form of the fixtures' truth."""
    found = {}
    for name in streams:
        try:
            rows = attached(node, name, counts.get(("/", name), 0))
        except ConnectionError:
            time.sleep(20)
            rows = attached(node, name, counts.get(("/", name), 0))
        if rows:
            found["/", name] = rows
    return found


def attached(node: Node, name: str, count: int) -> list[Message]:
    with Client(node.port) as client:
        return [message_of(each) for each in client.stream(name, count)]


@pytest.mark.skipif(not HISTORIES, reason="MQSTORE_HISTORIES says how many")
def test_what_a_node_delivers_of_streams_after_a_random_history(tmp_path: Path) -> None:
    compared = 0
    for first in range(0, HISTORIES, OF_ONE_NODE):
        node, port = node_with_streams(tmp_path / f"node-{first}")
        node.start()
        try:
            history = History(node, port, SEED + first)
            history.declare()
            for number in range(first, min(first + OF_ONE_NODE, HISTORIES)):
                compared += compare(node, history, number, tmp_path / "copy")
                print(f"history {number} of seed {SEED}: {compared} messages as delivered", flush=True)
        finally:
            node.kill()
    assert compared > 100 * HISTORIES


def compare(node: Node, history: History, number: int, copy: Path) -> int:
    """Ends the node in the middle of its work, reads its disk, starts it again, and reads its streams."""
    history.run(STEPS)
    node.end(clean=number % 3 == 2)
    history.abandon()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(node.vhosts.parents[1], copy)
    remove_lost_indexes(node.vhosts.parents[1] / "stream", copy / "stream")
    before = fingerprint(copy)
    one, seven = (golden.delivered(golden.rows(copy / "stream", min_partitions=count)) for count in (1, 7))
    assert fingerprint(copy) == before
    node.start()
    time.sleep(4)
    expected = delivered(node, history.streams, {key: len(rows) for key, rows in one.items()})
    for key in sorted({*one, *expected}):
        ours, theirs = one.get(key, []), expected.get(key, [])
        # A start that begins a segment drops those over the stream's limits, before or while they are read.
        dropped, delivered_now = first_offset(node, key[1]), {each["offset"] for each in theirs}
        ours = [each for each in ours if each["offset"] >= dropped or each["offset"] in delivered_now]
        numbers = [[each["offset"] for each in rows] for rows in (ours, theirs)]
        assert numbers[0] == numbers[1], f"seed {SEED}, history {number}, {key}: {len(ours)} of {len(theirs)}"
        assert ours == theirs, f"seed {SEED}, history {number}, {key}"
    assert seven == one, f"seed {SEED}, history {number}, seven partitions"
    return sum(map(len, expected.values()))


def first_offset(node: Node, name: str) -> int:
    """The first offset of a stream that is on a node's disk now."""
    (folder,) = (node.vhosts.parents[1] / "stream").glob(f"__{name}_*")
    return min(int(path.stem) for path in folder.glob("*.segment"))


def remove_lost_indexes(of_node: Path, of_copy: Path) -> None:
    """Removes the last index of a stream if a kill left no segment for it; a read of it reports what a node does.

    The node does not start such a stream until the index is removed (docs/format/rabbitmq-streams.md 7).
    """
    for folder in filter(Path.is_dir, of_copy.iterdir()):
        indexes = sorted(folder.glob("*.index"))
        if indexes and not indexes[-1].with_suffix(".segment").exists():
            with pytest.raises(MqStoreError, match="a node does not start the stream"):
                golden.rows(of_copy)
            print(f"{folder.name}: the last index has no segment", flush=True)
            indexes[-1].unlink()
            (of_node / folder.name / indexes[-1].name).unlink()
