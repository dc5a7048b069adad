"""A real 3.10.8 node on damaged indexes of version 2: it does what `verify` predicts, and serves what `repair` left."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pika
import pytest

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.rabbitmq import open_store
from storage_core.store import Mode
from tests.rabbitmq import golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.support.sampling import WHOLE
from tests.support.version_2_harm import CRASHES, FORGETS, HARMS, MAY_CRASH

pytestmark = [pytest.mark.real, pytest.mark.sampled, pytest.mark.timeout(600)]

VHOST, QUEUE = "v2", "q"
COUNT, LARGE_FROM, READ = 40, 35, 5
"""The number of messages published, the first large one, and the number acknowledged."""


def fill(node: Node, folder: Path) -> None:
    """Fills a queue of version 2 with messages in its own store and in the shared one."""
    file = folder / "definitions.json"
    everything = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    arguments = {"x-queue-version": 2}
    queue = {"name": QUEUE, "vhost": VHOST, "durable": True, "auto_delete": False, "arguments": arguments}
    permissions = [{**everything, "vhost": VHOST}]
    file.write_text(json.dumps({"vhosts": [{"name": VHOST}], "permissions": permissions, "queues": [queue]}))
    node.ctl("import_definitions", str(file))
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, VHOST, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(COUNT):
        padding = bytes(5000) if number >= LARGE_FROM else b""
        channel.basic_publish("", QUEUE, b"%04d" % number + padding, pika.BasicProperties(delivery_mode=2))
    for _ in range(READ):
        method, _, _ = channel.basic_get(QUEUE)
        channel.basic_ack(method.delivery_tag)
    time.sleep(1.5)  # the queue writes its index with a delay
    connection.close()


def publish_until_lost(node: Node, store: Path) -> None:
    """Publishes without confirms until the queue's index is ahead of its `.qs`, and kills the node."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, VHOST, heartbeat=0))
    channel, until = connection.channel(), time.monotonic() + 60
    while not listed_past_the_end(store):
        assert time.monotonic() < until, "the index is never ahead of its .qs"
        for _ in range(50):
            channel.basic_publish("", QUEUE, b"small", pika.BasicProperties(delivery_mode=2))
    node.kill()
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def listed_past_the_end(store: Path) -> int:
    """The number of persistent entries whose message is past the end of its `.qs`."""
    count = 0
    for path in store.glob("queues/*/*.qi"):
        own = path.with_suffix(".qs")
        entries = queue_v2.decode_entries(np.frombuffer(path.read_bytes(), np.uint8), queue_v2.SEGMENT_ENTRY_COUNT)
        entries = entries[(entries["flags"] == 1) & (entries["location"] == queue_v2.LOCATION_OWN)]
        ends = queue_v2.end_in_store(np.ascontiguousarray(entries["address"]).view(queue_v2.ADDRESS.dtype))
        count += int((ends > (own.stat().st_size if own.exists() else 0)).sum())
    return count


def test_a_node_killed_between_index_and_messages(tmp_path: Path) -> None:
    """What it had listed and not written is neither read nor served, and is no error."""
    node = Node(tmp_path / "node")
    node.start()
    try:
        fill(node, tmp_path)
        store = node.vhosts / paths.vhost_directory(VHOST.encode())
        publish_until_lost(node, store)
        assert listed_past_the_end(store)
        read = golden.table(store, columns=("body", "redelivered"), mode=Mode.FAILFAST).to_pylist()
        node.start()
        with Client(node.port, VHOST) as client:
            assert [(each.body, each.redelivered) for each in client.drain(QUEUE)] == [(*row.values(),) for row in read]
    finally:
        node.kill()


def index_of(store: Path) -> Path:
    (found,) = store.glob("queues/*/0.qi")
    return found


def bodies(store: Path) -> list[bytes]:
    found: list[bytes] = golden.table(store, columns=("body",), mode=Mode.DROPMALFORMED)["body"].to_pylist()
    return found


def served(node: Node, store: Path) -> list[tuple[bytes, bool]] | None:
    """Starts the vhost on a copy of the store; returns bodies and redelivered flags, None if the queue is missing."""
    target = node.vhosts / paths.vhost_directory(VHOST.encode())
    node.eval(f'catch rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"{VHOST}">>).')
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(store, target)
    assert "{ok," in node.eval(f'rabbit_vhost_sup_sup:start_vhost(<<"{VHOST}">>).')
    try:
        with Client(node.port, VHOST, timeout_s=5) as client:
            return [(each.body, each.redelivered) for each in client.drain(QUEUE)]
    except OSError:
        return None


@pytest.mark.skipif(not WHOLE, reason="three minutes; make test-real-full sets MQSTORE_WHOLE")
@pytest.mark.parametrize("clean", [True, False])
def test_a_node_on_damaged_indexes(clean: bool, tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.start()
    try:
        fill(node, tmp_path)
        node.end(clean)
        made = tmp_path / "made"
        shutil.copytree(node.vhosts / paths.vhost_directory(VHOST.encode()), made)
        node.start()
        wrong = []
        for what in HARMS:
            wrong += [f"{what}: {text}" for text in differences(node, made, clean, what, tmp_path / what)]
        assert not wrong, "\n".join(wrong)
    finally:
        node.kill()


def differences(node: Node, made: Path, clean: bool, what: str, store: Path) -> list[str]:
    """Where a node does not do what `verify` predicts, or serves other messages than expected after `repair`."""
    harm = HARMS[what]
    shutil.copytree(made, store)
    data = bytearray(index_of(store).read_bytes())
    harm.change(data)
    index_of(store).write_bytes(data)
    with open_store(str(store)) as opened:
        effects = {finding.effect for finding in opened.verify() if finding.kind == "segment"}
    wrong = [] if effects == {harm.clean if clean else harm.killed} else [f"foretold are {sorted(effects)}"]
    came = served(node, store)
    if effects == {CRASHES} and came is not None:
        wrong.append(f"the node serves {len(came)} messages")
    if effects == {MAY_CRASH} and came not in (None, [(body, False) for body in bodies(store)]):
        wrong.append(f"the node serves {len(came)} messages, mqstore reads {len(bodies(store))}")
    if FORGETS in " ".join(effects) and came != [(body, True) for body in bodies(store)]:
        wrong.append(f"the node serves {len(came or [])} messages, mqstore reads {len(bodies(store))}")
    with open_store(str(store)) as opened:
        opened.repair()
    left = bodies(store)
    came = served(node, store)
    if len(left) != COUNT - READ - harm.lost or came is None or [body for body, _ in came] != left:
        wrong.append(f"repaired, the node serves {came and len(came)} messages, mqstore reads {len(left)}")
    return wrong
