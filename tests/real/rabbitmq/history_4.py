"""Random publishes and acknowledgements on a node whose message files are small, so that RabbitMQ 4 soon compacts them.

A file is considered for compaction about 15 s after a message in it was acknowledged.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pika
import pyarrow as pa

from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.verify.kinds import Kind
from tests.rabbitmq import golden
from tests.real.rabbitmq.amqp import Client, Delivery
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import Node4

VHOST = "/"
QUEUES = {"plain": {}, "also": {}, "prio": {"x-max-priority": 2}}
EXCHANGE = "every ü"
FILE_SIZE = 1_000_000
FRAME_SIZE = 8192
"""The smallest frame size that every release accepts."""
COMPACTED_AFTER_S = 17
ZEROS = bytes(64)
"""Only the gaps that moved records leave behind contain as many zeros."""
MAY_BE = {Kind.COUNT, Kind.DISAGREEING}
"""Findings that are allowed. A node that was once killed fails to decrement some counts, and keeps their messages
forever. A kill may fall between the writes of an index and of a message, which the node then drops, as the rows show.
"""

ALIKE: dict[str, Callable[[random.Random, int], Any]] = {
    "message_id": lambda _, number: str(number),
    "timestamp": lambda r, _: 1_700_000_000 + r.randrange(10**6),
    "priority": lambda r, _: r.randrange(10),
    "content_type": lambda r, _: r.choice(["text/plain", "a"]),
    "expiration": lambda *_: "100000000",
    "headers": lambda r, number: r.choice([
        {"a": "x" * r.randrange(9), "b": number, "c": r.random() < 0.5},
        {"c": r.random() < 0.5, "B": number, "a": "x" * r.randrange(9)},
        {"lang": "py", "id": str(number), "eta": None, "timelimit": [None, number % 3], "share": 1 << 40},
        {"z": {"in": {"b": [1, True], "a": None}}, "y": -1, "x-a": b"\0".decode() * (number % 3)},
    ]),
}  # fmt: skip
"""Properties, and the values that a publisher may set."""


def definitions(arguments: dict[str, Any]) -> dict[str, Any]:
    """The virtual host with its queues, all of which also have these arguments, and an exchange bound to them."""
    guest = {"user": "guest", "vhost": VHOST, "configure": ".*", "write": ".*", "read": ".*"}
    common = {"vhost": VHOST, "durable": True, "auto_delete": False}
    exchange = {**common, "name": EXCHANGE, "type": "fanout", "internal": False, "arguments": {}}
    binding = {"vhost": VHOST, "source": EXCHANGE, "destination_type": "queue", "routing_key": "", "arguments": {}}
    return {
        "vhosts": [{"name": VHOST}],
        "permissions": [guest],
        "queues": [{**common, "name": name, "arguments": {**own, **arguments}} for name, own in QUEUES.items()],
        "exchanges": [exchange],
        "bindings": [{**binding, "destination": name} for name in QUEUES],
    }


def properties(r: random.Random, number: int) -> pika.BasicProperties:
    """A random choice of the fourteen properties."""
    header = r.choice([1, -5, 1 << 40, True, "é" * r.randrange(300), b"\0\xff", None, [1, "a"], {"in": {"er": [1, 2]}}])
    return pika.BasicProperties(
        content_type=r.choice([None, "text/plain", ""]),
        content_encoding=r.choice([None, "gzip"]),
        headers=r.choice([None, {}, {"x-a": header, "k ü": header}, {"CC": ["also"]}, {"BCC": ["also"], "n": header}]),
        delivery_mode=r.choice([1, 2, 2, 2]),
        priority=r.choice([None, 0, 1, 2, 9]),
        correlation_id=r.choice([None, str(number)]),
        reply_to=r.choice([None, "q ünïcödé"]),
        expiration=r.choice([None, None, "100000000"]),
        message_id=r.choice([None, "", str(number)]),
        timestamp=r.choice([None, 0, 1_700_000_000 + number]),
        type=r.choice([None, "kind"]),
        user_id=r.choice([None, "guest"]),
        app_id=r.choice([None, "tests"]),
        cluster_id=r.choice([None, "c"]),
    )


class History:
    """A running node with the three queues."""

    arguments: ClassVar[dict[str, Any]] = {}
    """The arguments of every queue, in addition to its own."""

    def __init__(self, seed: int | str, release: Callable[[str], Node] = Node4) -> None:
        self.r = random.Random(seed)
        self._connections: list[pika.BlockingConnection] = []
        self.node = release(f"[{{rabbit, [{{msg_store_file_size_limit, {FILE_SIZE}}}]}}].")
        try:
            self._begin()
        except BaseException:
            self.node.remove()
            raise
        self.vhost = self.node.vhosts / paths.vhost_directory(VHOST.encode())

    def _begin(self) -> None:
        self.node.start()
        path = self.node.folder / "definitions.json"
        path.write_text(json.dumps(definitions(self.arguments)))
        self.node.ctl("import_definitions", str(self.node.inside(path)))
        deadline = time.monotonic() + 30
        while set(self.node.ctl("list_queues", "--vhost", VHOST, "name", "--silent").split()) != {*QUEUES}:
            assert time.monotonic() < deadline, "the queues of the definitions are not there"
            time.sleep(0.2)

    def work(self, most: int = 400) -> None:
        """Publishes with confirms, and acknowledges a share of each queue; the connection stays open until the end."""
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST, heartbeat=0)
        self._connections.append(pika.BlockingConnection(parameters))
        channel = self._connections[-1].channel()
        channel.confirm_delivery()
        for number in range(self.r.randint(most // 4, most)):
            size = self.r.choice([0, 1, 100, 3000, 4090, 4096, *(self.r.randint(4097, 30_000) for _ in range(6))])
            body = (b"%d:" % number + self.r.randbytes(40) * (size // 40 + 1))[:size]
            where = (EXCHANGE, self.r.choice(["", "k ü"])) if self.r.random() < 0.3 else ("", self.r.choice([*QUEUES]))
            channel.basic_publish(*where, body, properties(self.r, number))
        for name in QUEUES:
            share = self.r.choice([0.3, 0.7, 0.8])
            while (got := channel.basic_get(name))[0] is not None:
                if self.r.random() < share:
                    channel.basic_ack(got[0].delivery_tag)

    def alike(self, count: int) -> None:
        """Publishes messages of a few publishers: those of one publisher have the same properties with other values."""
        r = self.r
        kinds = [(r.choice([*QUEUES]), r.sample([*ALIKE], r.randrange(len(ALIKE) + 1))) for _ in range(4)]
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST, heartbeat=0)
        self._connections.append(pika.BlockingConnection(parameters))
        channel = self._connections[-1].channel()
        channel.confirm_delivery()
        for number in range(count):
            name, kind = r.choice(kinds)
            fields = {key: ALIKE[key](r, number) for key in kind}
            fields["delivery_mode"] = 2 if r.random() < 0.95 else None
            body = r.randbytes(r.choice([1, 100, 5000]))
            channel.basic_publish("", name, body, pika.BasicProperties(**fields))

    def in_pieces(self, count: int) -> None:
        """Publishes bodies that frames cut into up to fifteen pieces."""
        r = self.r
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST, heartbeat=0, frame_max=FRAME_SIZE)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(count):
                body = r.randbytes(r.choice([1, FRAME_SIZE - 8, FRAME_SIZE, r.randrange(15 * FRAME_SIZE)]))
                channel.basic_publish("", r.choice([*QUEUES]), body, properties(r, number))

    def die(self, count: int) -> None:
        """Publishes messages that expire or are rejected, some of them twice, to become dead letters in each queue."""
        r = self.r
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST, heartbeat=0)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in QUEUES:
                dies = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
                again = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dying"}
                channel.queue_declare("dying", durable=True, arguments=dies)
                channel.queue_declare("twice", durable=True, arguments=again)
                for number in range(count):
                    fields = {key: ALIKE[key](r, number) for key in r.sample([*ALIKE], r.randrange(4))}
                    fields |= {"delivery_mode": r.choice([1, 2, 2]), "expiration": r.choice([None, "1", "90000000"])}
                    queue = r.choice(["dying", "dying", "twice"])
                    channel.basic_publish(
                        "", queue, r.randbytes(r.choice([1, 100, 5000])), pika.BasicProperties(**fields)
                    )
                deadline = time.monotonic() + 60
                while any(
                    channel.queue_declare(each, passive=True).method.message_count for each in ("twice", "dying")
                ):
                    assert time.monotonic() < deadline, "the messages do not die"
                    while (got := channel.basic_get("dying"))[0] is not None:
                        channel.basic_reject(got[0].delivery_tag, requeue=False)
                    time.sleep(0.1)
                channel.queue_delete("twice")
                channel.queue_delete("dying")

    def until_compacted(self, most: int = 400) -> None:
        """Works and waits until a compaction has left holes, at most six times: small files may have none."""
        for _ in range(6):
            self.work(most)
            self.wait(COMPACTED_AFTER_S)
            if self.holes():
                return

    def wait(self, seconds: float) -> None:
        """Leaves the node alone for a while."""
        time.sleep(seconds)

    def end(self, clean: bool) -> None:
        """Stops the node cleanly, or kills it."""
        self.node.end(clean)
        for connection in self._connections:
            with suppress(pika.exceptions.AMQPError):
                connection.close()
        self._connections.clear()

    def holes(self) -> int:
        """The number of message files in which a compaction has left zeros."""
        return sum(ZEROS in path.read_bytes() for path in (self.vhost / "msg_store_persistent").glob("*.rdq"))

    def delivered(self) -> dict[str, list[Delivery]]:
        """What the running node delivers from each queue, in order; all messages stay in their queues."""
        found = {}
        for name in QUEUES:
            with Client(self.node.port, VHOST) as client:
                found[name] = client.drain(name)
        return found


def as_rows(deliveries: dict[str, list[Delivery]]) -> dict[str, list[tuple[Any, ...]]]:
    """The deliveries in the form of `rows_of`."""
    return {
        name: [(each.exchange, each.routing_key, each.redelivered, each.properties, each.body) for each in listed]
        for name, listed in deliveries.items()
    }


def rows_of(table: pa.Table, queues: Iterable[str] = QUEUES) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of a read as the fields of a delivery, by queue and in order."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in queues}
    for name, listed in golden.by_queue(table).items():
        for row in listed:
            key = row["routingKeys"][0]
            rows[name].append((row["exchange"], key, row["redelivered"], row["rawProperties"], row["body"]))
    return rows


def read(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the store, read with FAILFAST."""
    return rows_of(golden.table(store))


def check_published(history: History, publish: Callable[[], None], clean: bool, what: str) -> None:
    """Publishes, ends the node, and checks that what is read is what the node delivers; then removes the node."""
    try:
        publish()
        history.end(clean)
        check_store(history, what)
    finally:
        history.node.remove()


def check_store(history: History, what: str) -> None:
    """Checks that the ended node, once started, delivers what was read before; stops it again."""
    with open_store(str(history.vhost)) as store:
        wrong = [finding for finding in store.verify() if finding.kind not in MAY_BE]
    assert wrong == [], what
    found = read(history.vhost)
    history.node.start()
    delivered = as_rows(history.delivered())
    assert found == delivered, (what, {name: (len(found[name]), len(delivered[name])) for name in delivered})
    history.node.stop()
