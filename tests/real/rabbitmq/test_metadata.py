"""Real nodes of RabbitMQ 4: the queues named by their metadata, in Mnesia or Khepri, are those that they list."""

from __future__ import annotations

import json
import random
import time

import pika
import pytest

from storage_core.rabbitmq.disk import node as metadata
from tests.real.rabbitmq.node_4 import FROM_4_ON, LATER, Node4
from tests.real.rabbitmq.stream_history import SETTLE_S
from tests.support.sampling import SEED

VHOSTS = ("/", "other ü", "gone")
KINDS = ("classic", "quorum", "stream")
MANY = """
Put = fun(N) ->
  khepri:put(rabbitmq_metadata, [rabbitmq, tests, integer_to_binary(N rem 50)], N, #{async => N rem 100 > 0}) end,
lists:foreach(Put, lists:seq(1, 60000)).
"""
"""More commands than Khepri processes before it takes a snapshot."""
pytestmark = [pytest.mark.real, pytest.mark.timeout(0), LATER]


def change(node: Node4, r: random.Random) -> None:
    """Declares queues of all kinds, deletes some, and declares some again; deletes one virtual host."""
    for vhost in VHOSTS:
        if vhost != "/":
            node.ctl("add_vhost", vhost)
            node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, vhost, heartbeat=0))
        channel = connection.channel()
        for _ in range(12):
            name, kind = f"q{r.randrange(15)}", r.choice(KINDS)
            channel.queue_delete(name)
            if r.random() < 0.8:
                more = {"x-max-priority": 3} if kind == "classic" and r.random() < 0.5 else {"x-max-length-bytes": 999}
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **more})
        connection.close()
    node.ctl("delete_vhost", "gone")


def listed(node: Node4) -> dict[tuple[str, str], tuple[str, object]]:
    found = {}
    for vhost in VHOSTS[:2]:
        text = node.ctl("list_queues", "-q", "-p", vhost, "--formatter", "json", "name", "type", "arguments")
        for row in json.loads(text):
            found[vhost, row["name"]] = row["type"], {name: value for name, _, value in row["arguments"]}
    return found


@pytest.mark.parametrize("release", FROM_4_ON)
@pytest.mark.parametrize("clean", [True, False])
def test_queues_by_name(release: type[Node4], clean: bool) -> None:
    node, r = release(), random.Random(f"{SEED} {clean}")
    folder = node.vhosts.parents[1]
    try:
        node.start()
        for again in range(2):
            change(node, r)
            expected = listed(node)
            time.sleep(2 * SETTLE_S)
            if again and release is not Node4:
                assert [*folder.glob("coordination/*/*/snapshots/*/snapshot.dat")]
            node.end(clean)
            found = metadata.queues_of_node(str(folder))
            assert {key: (queue.kind, json.loads(queue.arguments)) for key, queue in found.items()} == expected
            streams = {queue.directory for queue in found.values() if queue.kind == "stream"}
            assert streams <= {path.name for path in (folder / "stream").iterdir()}
            node.start()
            node.ctl("delete_vhost", VHOSTS[1])
            if release is not Node4:
                node.eval(MANY)
    finally:
        node.remove()
