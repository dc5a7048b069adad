"""Random histories of streams on a running node: published with and without confirms, over both protocols, expired.

What the streams hold afterwards is for the node to tell. Small segments make them roll over within a few messages.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pika

from storage_core.formats.rabbitmq.amqp import properties
from tests.rabbitmq import amqp10
from tests.rabbitmq.quorum_golden import Message, as_delivered
from tests.real.rabbitmq.amqp import Delivery
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.stream_protocol import StreamClient
from tests.support.free_ports import free_port

SETTLE_S = 4.5
"""Declarations reach the node's disk within this time; an earlier kill loses the queue."""
SMALL = {"x-stream-max-segment-size-bytes": 6000}
STREAMS: tuple[dict[str, object], ...] = (
    {},
    SMALL,
    {**SMALL, "x-max-length-bytes": 20_000},
    {"x-stream-max-segment-size-bytes": 3000, "x-max-age": "10s"},
    {"x-stream-max-segment-size-bytes": 40_000, "x-max-length-bytes": 100_000},
)
HEADERS: tuple[dict[str, object] | None, ...] = (
    None, {"n": 1}, {"t": "x", "b": True}, {"long": -(1 << 40), "none": None}, {"kept": "k" * 300},
    {"x-stream-filter-value": "red"}, {"x-stream-filter-value": "blue", "n": 2},
)  # fmt: skip


def node_with_streams(folder: Path) -> tuple[Node, int]:
    """A node, not yet started, that also supports the stream protocol, and its port for that protocol."""
    port = free_port()
    node = Node(folder, conf=f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n")
    (node.folder / "enabled_plugins").write_text("[rabbitmq_stream].")
    return node, port


def message_of(each: Delivery) -> Message:
    """A delivery in the form of the truth, with the offset that the node adds."""
    listed = properties.decode(each.properties)
    offset = next(value for name, _, value in listed["headers"] if name == b"x-stream-offset")
    body = hashlib.sha256(each.body).hexdigest()
    message = as_delivered(body, len(each.body), listed, each.exchange, each.routing_key, each.redelivered)
    return {**message, "offset": offset}


def _data(body: bytes) -> bytes:
    """A message with a single data section."""
    return amqp10.section(0x75, amqp10.counted(0xA0, body))


class History:
    """One random history of a node, determined by `seed`."""

    def __init__(self, node: Node, stream_port: int, seed: int) -> None:
        self._node, self._port, self._chance, self._numbers = node, stream_port, random.Random(seed), 0
        self._ids: dict[str, int] = {}
        self._connections: list[pika.BlockingConnection] = []
        self._clients: list[StreamClient] = []
        self._flood: threading.Thread | None = None
        self.streams = [f"s{number}" for number in range(len(STREAMS))]

    def _channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        where = pika.ConnectionParameters("127.0.0.1", self._node.port, heartbeat=0, socket_timeout=20)
        self._connections.append(pika.BlockingConnection(where))
        return self._connections[-1].channel()

    def declare(self) -> None:
        """Declares the streams."""
        channel = self._channel()
        for name, arguments in zip(self.streams, STREAMS, strict=True):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
        channel.exchange_declare("all", "fanout", durable=True)
        for name in self.streams:
            channel.queue_bind(name, "all", "")
        time.sleep(SETTLE_S)

    def run(self, steps: int) -> None:
        """Does random things to the streams; a flood without confirms is still running when it returns."""
        channel, client = self._channel(), StreamClient(self._port)
        confirmed = self._channel()
        confirmed.confirm_delivery()
        self._clients.append(client)
        for number, name in enumerate(self.streams):
            client.publisher(number, self._chance.choice(("", f"pub-{name}")), name)
        for _ in range(steps):
            number = self._chance.randrange(len(self.streams))
            what = self._chance.random()
            if what < 0.45:
                self._publish(confirmed if self._chance.random() < 0.4 else channel, self.streams[number])
            elif what < 0.9:
                self._publish_by_stream(client, number)
            else:
                client.store_offset(f"reader-{self._chance.randrange(3)}", self.streams[number], self._numbers)
            if self._chance.random() < 0.3:
                channel.connection.process_data_events(0.02)
        self._flood = threading.Thread(target=self._publish_for_ever, args=(self._chance.choice(self.streams),))
        self._flood.start()
        time.sleep(self._chance.random() * 0.7)

    def abandon(self) -> None:
        """Drops the connections of a node that was killed or stopped."""
        if self._flood is not None:
            self._flood.join()
        for connection in self._connections:
            with suppress(pika.exceptions.AMQPError):
                connection.close()
        for client in self._clients:
            client.close()
        self._connections.clear()
        self._clients.clear()

    def _body(self, name: str) -> bytes:
        self._numbers += 1
        return f"{name} {self._numbers} ".encode() + self._chance.randbytes(self._chance.choice((0, 3, 40, 400, 5000)))

    def _publish(self, channel: pika.adapters.blocking_connection.BlockingChannel, name: str) -> None:
        chance = self._chance
        for _ in range(chance.randrange(1, 30)):
            properties = pika.BasicProperties(
                delivery_mode=chance.choice((1, 2)),
                message_id=chance.choice((None, str(self._numbers))),
                content_type=chance.choice((None, "text/plain")),
                content_encoding=chance.choice((None, None, "gzip")),
                correlation_id=chance.choice((None, None, "c" * chance.choice((1, 250)))),
                reply_to=chance.choice((None, None, "r", "r %", f"amq.gen-{self._numbers}")),
                type=chance.choice((None, None, "kind")),
                app_id=chance.choice((None, None, "app")),
                timestamp=chance.choice((None, 1_700_000_000)),
                headers=chance.choice(HEADERS),
                expiration=chance.choice((None, None, None, "90000000")),
                priority=chance.choice((None, None, 3)),
            )
            through = chance.random() < 0.05
            channel.basic_publish("all" if through else "", "" if through else name, self._body(name), properties)

    def _publish_by_stream(self, client: StreamClient, number: int) -> None:
        """Publishes messages and sub-batches, but no gzip ones, on which an AMQP 0-9-1 consumer fails."""
        entries: list[bytes | tuple[int, list[bytes]]] = []
        for _ in range(self._chance.randrange(1, 12)):
            count = self._chance.choice((0, 0, 1, 3, 40))
            made = [_data(self._body(self.streams[number])) for _ in range(max(1, count))]
            entries.append((0, made) if count else made[0])
        name = self.streams[number]
        client.publish(number, self._ids.get(name, 1), entries)
        self._ids[name] = self._ids.get(name, 1) + len(entries)
        if self._chance.random() < 0.5:
            client.confirmed()

    def _publish_for_ever(self, name: str) -> None:
        """Publishes until the node is gone."""
        with suppress(pika.exceptions.AMQPError, OSError):
            channel, count = self._channel(), 0
            while count < 4000:
                channel.basic_publish("", name, b"flood %d" % count + b"x" * (count % 90))
                count += 1
