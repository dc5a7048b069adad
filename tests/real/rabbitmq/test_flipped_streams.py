"""One flipped bit, or a cut, in each of many streams: what a real 3.10.8 node starts, delivers, and stops at.

`MQSTORE_STREAM_FLIPS` sets the number of streams; without it none is made. Each is read and checked before the node
starts. Every message that a consumer receives must be read, and `verify` must report whether the consumer receives all
messages and whether the stream starts.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pika
import pytest

from storage_core.rabbitmq import open_store
from storage_core.store import Mode
from tests.rabbitmq import stream_golden as golden
from tests.rabbitmq.quorum_golden import Message
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.stream_history import SETTLE_S, message_of
from tests.reference.osiris_reader import FILE_HEAD, HEAD, RECORD

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

SEED = int(os.environ.get("MQSTORE_SEED", "20261127"))
STREAMS = int(os.environ.get("MQSTORE_STREAM_FLIPS", "0"))
STOPS = {"fails a consumer that comes to it", "serves the chunk; a consumer does not get beyond it"}
ID = range(24, 32)
NOT_STARTED = "does not start the stream"


def make(node: Node, names: list[str], draw: random.Random) -> None:
    """Makes streams of about three segments, with chunks of one message and of several."""
    where = pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0, socket_timeout=60)
    channel = pika.BlockingConnection(where).channel()
    for name in names:
        arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1500}
        channel.queue_declare(name, durable=True, arguments=arguments)
    for burst in range(5):
        for name in names:
            for number in range(draw.randrange(1, 7)):
                properties = pika.BasicProperties(message_id=f"{burst}.{number}", headers={"n": number})
                channel.basic_publish("", name, b"x" * draw.choice((5, 60)), properties)
        channel.connection.process_data_events(0.3)
    time.sleep(SETTLE_S)
    channel.connection.close()


def harm(folder: Path, draw: random.Random) -> str:
    """Flips a bit of a file, or cuts the last chunk; returns a description."""
    kind = draw.choice(("head", "head", "trailer", "index", "any", "begin", "cut"))
    segments = sorted(path for path in folder.glob("*.segment") if path.stat().st_size > FILE_HEAD)
    path = segments[-1] if kind == "cut" else draw.choice(segments)
    index = path.with_suffix(".index").read_bytes()[FILE_HEAD:]
    positions = [each[3] for each in RECORD.iter_unpack(index[: len(index) // RECORD.size * RECORD.size])]
    size = path.stat().st_size
    if kind == "cut":
        last = positions[-1]
        os.truncate(path, draw.choice((last, last + 20, last + HEAD.size, last + HEAD.size + 1, size - 1)))
        return f"{path.name} cut at {path.stat().st_size} of {size}"
    if kind == "index" or (kind in {"any", "begin"} and draw.random() < 0.5):
        path = path.with_suffix(".index")
    data, position = bytearray(path.read_bytes()), draw.choice(positions)
    # A node trusts the first id of a log: it serves the chunk under a wrong one, which we report as damaged.
    believed = {FILE_HEAD + each for each in ID} if path.suffix == ".segment" else set()
    place = draw.choice(sorted({*range(FILE_HEAD if kind == "begin" else len(data))} - believed))
    if kind == "head":
        place = draw.choice(sorted({*range(position, position + HEAD.size)} - believed))
    elif kind == "trailer":
        head = HEAD.unpack_from(data, position)
        place = position + HEAD.size + head[8] + draw.randrange(max(1, head[9]))
    bit = draw.randrange(8)
    data[min(place, len(data) - 1)] ^= 1 << bit
    path.write_bytes(data)
    return f"{path.name} byte {place} bit {bit}"


def consumed(node: Node, name: str, seconds: float) -> list[Message] | None:
    """What a consumer receives from the first offset on, one by one, until none arrives for `seconds`; None if it
    cannot begin.
    """
    found: list[Message] | None = None
    try:
        with Client(node.port, timeout_s=seconds) as client:
            for delivery in client.streamed(name, prefetch=1):
                found = [*(found or []), message_of(delivery)]
    except TimeoutError:
        return found or []
    except (OSError, UnicodeDecodeError):
        return found
    return found


def fits(ours: list[Message], theirs: list[Message] | None, effects: set[str]) -> bool:
    """Whether a consumer received what is read, as far as `verify` predicts that it does."""
    starts, whole = NOT_STARTED not in effects, not effects & STOPS
    if theirs is None:
        return not starts or not whole
    return starts and all(each in ours for each in theirs) and (theirs == ours or not whole)


@pytest.mark.skipif(not STREAMS, reason="MQSTORE_STREAM_FLIPS says how many")
def test_what_a_node_delivers_of_streams_with_a_flipped_bit(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    node, names = Node(tmp_path / "node"), [f"f{number}" for number in range(STREAMS)]
    node.start()
    try:
        make(node, names, draw)
        node.stop()
        root = node.vhosts.parents[1] / "stream"
        folders = {path.name.split("_")[2]: path for path in sorted(root.iterdir()) if path.is_dir()}
        harms = {name: harm(folders[name], draw) for name in names}
        read = golden.delivered(golden.rows(root, mode=Mode.DROPMALFORMED))
        effects: dict[str, set[str]] = {name: set() for name in names}
        with open_store(str(root)) as store:
            for finding in store.verify():
                effects[finding.file.split("_")[2]].add(finding.effect)
        node.start()
        time.sleep(6)
        wrong = []
        for name in names:
            ours, effect = read.get(("/", name), []), effects[name]
            theirs = consumed(node, name, 2)
            if not fits(ours, theirs, effect):  # a node that is busy is slow
                theirs = consumed(node, name, 20)
            if not fits(ours, theirs, effect):
                wrong.append(f"{name}, {harms[name]}: {effect}, {len(theirs or [])} of {len(ours)}")
        print(f"{STREAMS} streams, seed {SEED}: {sum(map(len, read.values()))} messages read")
        assert not wrong, "\n".join(wrong)
    finally:
        node.kill()
