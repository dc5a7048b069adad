"""A real 3.10.8 node and `queue()` take turns on one vhost directory: each delivers what the other leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.errors import StoreLockedError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index.message_run import PERSISTENT
from storage_core.rabbitmq.queue.queue import Queue
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NAME = "orders"
SETTINGS = Settings(msg_store_file_size_limit=65536)
Expected = list[tuple[bytes, bool]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node")
    node.start()
    node.eval(
        'rabbit_amqqueue:declare({resource, <<"/">>, queue, <<"orders">>}, true, false, [], none, <<"guest">>), ok.'
    )
    yield node
    if node.process is not None:
        node.stop()


def vhost_of(node: Node) -> Path:
    return node.vhosts / paths.vhost_directory(b"/")


def use(queue: Queue, chance: random.Random, first: int) -> None:
    """Publishes, pages, delivers and acknowledges messages of all kinds."""
    number = first
    for round_ in range(30):
        count = chance.randint(1, 40)
        size = chance.choice([0, 10, 300, 4095, 4096, 9000])
        bodies = [(b"%08d" % (number + place))[: size or 8].ljust(size, b".") for place in range(count)]
        number += count
        queue.publish_many(bodies, persistent=chance.random() < 0.7, content_type="text/plain")
        if round_ % 4 == 1:
            taken = queue.fetch_many(chance.randint(1, 60))
            queue.ack(chance.sample(taken.sequence_ids.tolist(), len(taken) // 2))
        if round_ % 4 == 2:
            queue.set_target_ram_count(chance.choice([0, 10, 100, None]))


def left(queue: Queue) -> Expected:
    """What must be delivered after a restart, by sequence id."""
    run, _ = queue._queue.paging.visit()
    kept = run[run.has(PERSISTENT)]
    border = queue._queue.paging.state.next_deliver_sequence_id
    bodies = [basic_message.decode(term).body for term in kept.terms]
    return list(zip(bodies, (kept.sequence_ids < border).tolist(), strict=True))


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_boots_on_what_the_door_left(node: Node, clean: bool) -> None:
    node.stop()
    root, chance = vhost_of(node), random.Random(clean)
    queue = Queue(str(root), NAME, SETTINGS)
    use(queue, chance, 0)
    wanted = left(queue)
    if clean:
        queue.close()
    else:
        queue.sync()
        queue._vhost.abandon(RuntimeError("killed"))
        queue.close()
        wanted = [(body, True) for body, _ in wanted]
    assert len(wanted) > 100
    node.start()
    with Client(node.port) as client:
        found = client.drain(NAME)
        assert [(delivery.body, delivery.redelivered) for delivery in found] == wanted
        client.ack_all(found[49].tag)
    node.stop()
    with Queue(str(root), NAME, SETTINGS) as queue:
        bodies = [delivery.body for delivery in queue.fetch_many(100_000)]
        assert bodies == [body for body, _ in wanted[50:]]
        assert queue.unacknowledged == len(bodies)
        use(queue, chance, 50_000)
        wanted = left(queue)
    node.start()
    with Client(node.port) as client:
        assert [(delivery.body, delivery.redelivered) for delivery in client.drain(NAME)] == wanted


def test_a_running_node_keeps_writers_out(node: Node) -> None:
    with pytest.raises(StoreLockedError, match="locked"):
        Queue(str(vhost_of(node)), NAME, SETTINGS)
