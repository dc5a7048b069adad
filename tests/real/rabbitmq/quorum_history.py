"""Random histories of quorum queues on a running node: published, fetched, acknowledged, rejected, returned, purged.

What the queues hold afterwards is for the node to tell. Small segments and a small log make it roll over and take
snapshots within a few hundred messages.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.real.rabbitmq.node import Node

SMALL_LOG = (
    "[{ra,[{segment_max_entries,64},{wal_max_size_bytes,65536}]},"
    "{rabbit,[{quorum_snapshot_interval,64},{quorum_min_checkpoint_interval,16}]}].\n"
)
TINY_LOG = SMALL_LOG.replace("segment_max_entries,64", "segment_max_entries,16")
"""For a node of 4.3, which merges segments."""
CHECKPOINTS = "persistent_term:put(quorum_queue_checkpoint_config, {1, 8, 64})."
"""After how many ms, and between how many entries, a node of 4.0 looks for something to drop from its log."""
SNAPSHOTS = (
    "ra_log_wal:force_roll_over(ra_log_wal), timer:sleep(400), "
    'rabbit_quorum_queue:force_checkpoint(<<".*">>, <<".*">>), '
    "[ra:trigger_compaction(amqqueue:get_pid(Q)) || Q <- rabbit_amqqueue:list()]."
)
"""Makes a node of 4.3 begin a new write-ahead log, take a snapshot of each queue, regardless of its content, and
compact its segments."""
STEPS_OF_A_SNAPSHOT = 15
DEAD_LETTERS = "dead"
SETTLE_S = 4.5
"""Declarations reach the node's disk within this time; an earlier kill loses the queue."""
MOST_HELD = 20
"""To the queue, each message that was fetched and is held is a consumer. The order in which those of a closed channel
return is not known for more than 32 (rabbitmq-quorum.md 10)."""
NOBODY = "nobody"
"""A routing key without a queue: what is to be published to it at least once is held."""
AT_LEAST_ONCE: dict[str, object] = {
    "x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
}  # fmt: skip
QUEUES: tuple[dict[str, object], ...] = (
    {},
    {"x-delivery-limit": 2},
    {"x-max-length": 25},
    {"x-max-length-bytes": 3000},
    {"x-message-ttl": 86_400_000},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD_LETTERS},
    {"x-max-length": 40, "x-overflow": "reject-publish"},
    {"x-dead-letter-routing-key": DEAD_LETTERS, "x-delivery-limit": 2, **AT_LEAST_ONCE},
    {"x-dead-letter-routing-key": NOBODY, "x-delivery-limit": 2, "x-max-length": 60, **AT_LEAST_ONCE},
)

CONSUMED: tuple[dict[str, object], ...] = (
    {"x-delivery-limit": -1},
    {"x-single-active-consumer": True},
    {"x-single-active-consumer": True, "x-max-length": 60},
)
"""Queues of histories with long-lived consumers, in addition to QUEUES. One with a single active consumer and a low
delivery limit may come to a standstill (rabbitmq-quorum.md 10.2)."""


def with_small_log(node: Node) -> Node:
    """Configures a node that has not been started to use small files for its quorum queues; returns it."""
    (Path(node.folder) / "advanced.config").write_text(SMALL_LOG)
    return node


def snapshot_often(node: Node) -> None:
    """Makes a running node of 4.0 take snapshots of short logs; the setting is lost when the node ends."""
    node.eval(CHECKPOINTS)


class History:
    """One random history of a node, determined by `seed`; its connections stay open across a kill.

    With `consumers` there are consumers that stay or cancel, and messages of high priority.
    """

    def __init__(self, node: Node, seed: int, consumers: bool = False) -> None:
        self._node, self._chance, self._numbers, self.consumers = node, random.Random(seed), 0, consumers
        self._connections: list[pika.BlockingConnection] = []
        self._held: dict[str, int] = {}
        self._bodies: list[bytes] = []
        self._single: set[str] = set()
        self.queues: list[str] = []

    def move_to(self, node: Node) -> None:
        """Continues with another node, which has the files of the previous one."""
        self._node = node

    def channel(self) -> BlockingChannel:
        """A channel on a new connection."""
        where = pika.ConnectionParameters("127.0.0.1", self._node.port, heartbeat=0, socket_timeout=20)
        connection = pika.BlockingConnection(where)
        self._connections.append(connection)
        return connection.channel()

    def declare(self) -> None:
        """Declares the queues."""
        channel = self.channel()
        kinds = QUEUES + CONSUMED if self.consumers else QUEUES
        for name, arguments in [(DEAD_LETTERS, {}), *((f"q{n}", each) for n, each in enumerate(kinds))]:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **arguments})
            self.queues.append(name)
            if "x-single-active-consumer" in arguments:
                self._single.add(name)
        time.sleep(SETTLE_S)

    def run(self, steps: int) -> None:
        """Does random things to all queues except that of the dead letters; some messages stay fetched."""
        done: list[Callable[[BlockingChannel, str], None]] = [self._publish, self._fetch, self._leave, self._purge]
        weights: list[float] = [12, 12, 2, 0.3]
        if self.consumers:
            done.append(self._consume)
            weights.append(4)
        channels = {name: self.channel() for name in self.queues if name != DEAD_LETTERS}
        for channel in channels.values():
            channel.confirm_delivery()
        for number in range(steps):
            if self._node.snapshots_hold_messages and number % STEPS_OF_A_SNAPSHOT == STEPS_OF_A_SNAPSHOT // 2:
                self._node.eval(SNAPSHOTS)
            name = self._chance.choice(sorted(channels))
            step = self._chance.choices(done, weights)[0]
            if name in self._single and step == self._fetch:
                step = self._consume
            step(channels[name], name)
        time.sleep(2.0)  # dead letters on their way

    def dead_letters(self, sources: tuple[bytes, ...]) -> frozenset[str]:
        """The SHA-256 of each body published to a queue whose messages may become dead letters."""
        return frozenset(hashlib.sha256(body).hexdigest() for body in self._bodies if body.startswith(sources))

    def abandon(self) -> None:
        """Drops the connections of a node that was killed or stopped."""
        for connection in self._connections:
            with suppress(pika.exceptions.AMQPError):
                connection.close()
        self._connections.clear()
        self._held.clear()

    def _publish(self, channel: BlockingChannel, name: str) -> None:
        chance = self._chance
        for _ in range(chance.randrange(1, 30)):
            self._numbers += 1
            body = f"{name} {self._numbers} ".encode() + chance.randbytes(chance.choice((0, 3, 40, 400)))
            self._bodies.append(body)
            properties = pika.BasicProperties(
                delivery_mode=chance.choice((1, 2)),
                message_id=chance.choice((None, str(self._numbers))),
                content_type=chance.choice((None, "text/plain")),
                headers=chance.choice((None, {"n": self._numbers}, {"t": "x", "b": True})),
                expiration=chance.choice((None, None, None, "90000000")),
                priority=chance.choice((None, 4, 5, 200) if self.consumers else (None, None, 3)),
            )
            with suppress(pika.exceptions.NackError):
                channel.basic_publish("", name, body, properties)

    def _fetch(self, channel: BlockingChannel, name: str) -> None:
        """Fetches some; each is acknowledged, returned, rejected, or stays with its channel."""
        if self._held.get(name, 0) > MOST_HELD:
            channel.basic_ack(0, multiple=True)
            self._held[name] = 0
        tags: list[int] = []
        for _ in range(self._chance.randrange(1, 12)):
            at_once = self._chance.random() < 0.1
            found, _, _ = channel.basic_get(name, auto_ack=at_once)
            if found is None:
                break
            if not at_once:
                tags.append(found.delivery_tag)
        if tags and self._chance.random() < 0.2:
            many = self._chance.choice(("ack", "nack"))
            self._settle(channel, many, tags[-1], multiple=True)
            return
        self._chance.shuffle(tags)
        for tag in tags:
            how = self._chance.choices(("ack", "nack", "reject", "hold"), (5, 2, 1, 1))[0]
            self._held[name] = self._held.get(name, 0) + (how == "hold")
            self._settle(channel, how, tag)

    def _settle(self, channel: BlockingChannel, how: str, tag: int, multiple: bool = False) -> None:
        if how == "ack":
            channel.basic_ack(tag, multiple=multiple)
        elif how == "nack":
            channel.basic_nack(tag, multiple=multiple, requeue=True)
        elif how == "reject":
            channel.basic_reject(tag, requeue=False)

    def _leave(self, channel: BlockingChannel, name: str) -> None:
        """Receives some on a connection that is then closed: those that were not acknowledged return."""
        other, taken, most = self.channel(), [], self._chance.randrange(1, 12)
        other.basic_qos(prefetch_count=most)
        other.basic_consume(name, lambda _channel, method, _properties, _body: taken.append(method.delivery_tag))
        other.connection.process_data_events(0.1)
        for tag in taken:
            if self._chance.random() < 0.3:
                other.basic_ack(tag)
        other.connection.close()
        self._connections.pop()
        channel.connection.process_data_events(0.05)

    def _consume(self, channel: BlockingChannel, name: str) -> None:
        """Adds a consumer that stays: it settles some of what it receives, and may cancel and keep the rest."""
        chance, taken = self._chance, []
        other = self.channel()
        other.basic_qos(prefetch_count=chance.randrange(1, 9))
        tag = other.basic_consume(
            name, lambda _channel, method, _properties, _body: taken.append(method.delivery_tag),
            arguments=chance.choice(({}, {"x-priority": chance.randrange(-1, 3) * self._may_give_way(name)})),
        )  # fmt: skip
        for _ in range(chance.randrange(1, 4)):
            other.connection.process_data_events(0.1)
            for number in sorted(taken, key=lambda _: chance.random()):
                how = chance.choices(("ack", "nack", "reject", "hold"), (5, 2, 1, 3))[0]
                self._settle(other, how, number)
            taken.clear()
        if chance.random() < 0.3:
            other.basic_cancel(tag)
        channel.connection.process_data_events(0.05)

    def _may_give_way(self, name: str) -> bool:
        """Whether a consumer of the queue may give way to one of a higher priority. If a consumer that is giving way
        goes down on 4.3, the queue comes to a standstill (docs/format/rabbitmq-quorum.md 10.4).
        """
        return not self._node.revives_quiescing or name not in self._single

    def _purge(self, channel: BlockingChannel, name: str) -> None:
        channel.queue_purge(name)
