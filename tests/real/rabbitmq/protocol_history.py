"""Random publishes over AMQP 1.0, MQTT 3.1.1 and MQTT 5 on a node of RabbitMQ 4, besides those over AMQP 0-9-1."""

from __future__ import annotations

import random
import uuid
from typing import Any, Self

import pika
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.rabbitmq import amqp10_random
from tests.real.rabbitmq import amqp
from tests.real.rabbitmq.amqp10_sender import Sender, to_exchange, to_queue
from tests.real.rabbitmq.history_4 import EXCHANGE, QUEUES, VHOST, History
from tests.support.free_ports import free_port

PLUGINS = "[rabbitmq_mqtt]."
BODY_SIZES = (0, 5, 100, 3000, 4090, 4096, 5000, 9000)
LONGEST_DAYS = 40
"""The longest expiry: no message expires during a test, and none stays in a queue longer than a node allows."""


class Publisher:
    """One MQTT connection. A context manager."""

    def __init__(self, port: int, version: int) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, "tests", protocol=version)
        self._client.username_pw_set("guest", "guest")
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes, qos: int, properties: Properties | None = None) -> None:
        """Publishes a message; with QoS 1, where the node confirms it, waits until the node has it."""
        self._client.publish(topic, payload, qos, properties=properties).wait_for_publish(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def mqtt_properties(r: random.Random) -> Properties:
    """Random properties of an MQTT 5 message."""
    found = Properties(PacketTypes.PUBLISH)
    text = amqp10_random.text
    if r.random() < 0.4:
        found.ContentType = r.choice(("text/plain", text(r).decode(), "a" * 300))
    if r.random() < 0.5:
        found.CorrelationData = r.choice((r.randbytes(8), text(r), b"a" * 300, b"", b"a\0b"))
    if r.random() < 0.4:
        found.ResponseTopic = r.choice(("a/b", text(r).decode() or "t", "x.y/z"))
    if r.random() < 0.5:
        names = ("x-a", "k" * 300, "x-correlation-id", "x-reply-to-topic", "plain", "é")
        found.UserProperty = [(r.choice(names), text(r, 400).decode()) for _ in range(r.randrange(1, 5))]
    if r.random() < 0.3:
        found.MessageExpiryInterval = r.randrange(86_400, LONGEST_DAYS * 86_400)
    return found


def task_properties(r: random.Random, number: int) -> pika.BasicProperties:
    """The properties of a Celery task."""
    task = str(uuid.UUID(int=r.getrandbits(128)))
    headers = {
        "lang": "py", "task": "shop.tasks.mail", "id": task, "shadow": None, "eta": None, "expires": None,
        "group": None, "group_index": None, "retries": number % 3, "timelimit": [None, None], "root_id": task,
        "parent_id": None, "argsrepr": f"({number},)", "kwargsrepr": "{}", "origin": "gen1@host",
        "ignore_result": False, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
    }  # fmt: skip
    return pika.BasicProperties(
        content_type="application/json", content_encoding="utf-8", headers=headers, delivery_mode=2, priority=0,
        correlation_id=task, reply_to=str(uuid.UUID(int=r.getrandbits(128))),
    )  # fmt: skip


def reading_properties(r: random.Random, number: int) -> Properties:
    """The properties of a sensor reading."""
    found = Properties(PacketTypes.PUBLISH)
    found.ContentType, found.UserProperty = "application/json", [("site", f"s{number % 9}"), ("unit", "C")]
    if r.random() < 0.5:
        found.ResponseTopic, found.CorrelationData = "answers/1", r.randbytes(8)
    return found


class ProtocolHistory(History):
    """A node with the three queues, which are also bound to the exchange of MQTT, by the last word of a topic."""

    def _begin(self) -> None:
        self.mqtt_port = free_port()
        (self.node.folder / "enabled_plugins").write_text(PLUGINS)
        with (self.node.folder / "rabbitmq.conf").open("a") as conf:
            conf.write(f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt_port}\n")
        super()._begin()
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST))
        for name in QUEUES:
            connection.channel().queue_bind(name, "amq.topic", f"#.{name}")
        connection.close()

    def work(self, most: int = 400) -> None:
        """Publishes, waiting for each message, and acknowledges a share of each queue."""
        self._by_amqp10(self.r.randint(most // 4, most))
        for version in (MQTTv311, MQTTv5):
            self._by_mqtt(version, self.r.randint(most // 8, most // 2))
        for name in QUEUES:
            share = self.r.choice((0.0, 0.3, 0.7))
            with amqp.Client(self.node.port, VHOST) as client:
                for delivery in client.drain(name):
                    if self.r.random() < share:
                        client.ack(delivery.tag)

    def usual(self, count: int) -> None:
        """Publishes small messages as most clients send them: `count` to each queue, each over its own protocol."""
        tasks, others, readings = QUEUES
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(count):
                channel.basic_publish("", tasks, self.r.randbytes(200), task_properties(self.r, number))
        with Sender(self.node.port) as sender:
            for number in range(count):
                sender.send(to_queue(others), amqp10_random.usual_message(self.r, number))
        for version, share in ((MQTTv311, count // 2), (MQTTv5, count - count // 2)):
            with Publisher(self.mqtt_port, version) as publisher:
                for number in range(share):
                    properties = reading_properties(self.r, number) if version == MQTTv5 else None
                    publisher.publish(f"sensors/{number % 50}/{readings}", b"%d.5" % number, 1, properties)

    def _by_amqp10(self, count: int) -> None:
        """Includes some that a node of 4.3 refuses: duplicate sections, or several kinds in a body."""
        r, refused = self.r, 0
        sender = Sender(self.node.port)
        for _ in range(count):
            key = r.choice(("k ü", "k"))
            where = to_exchange(EXCHANGE, key) if r.random() < 0.2 else to_queue(r.choice([*QUEUES]))
            message = amqp10_random.message(r, r.choice(BODY_SIZES), persistent=r.choice((True, True, None)))
            try:
                sender.send(where, message)
            except ConnectionError:
                refused += 1
                sender.close()
                sender = Sender(self.node.port)
        sender.close()
        assert refused <= (count // 2 if self.node.refuses_odd else 0)

    def _by_mqtt(self, version: Any, count: int) -> None:
        r = self.r
        with Publisher(self.mqtt_port, version) as publisher:
            for _ in range(count):
                topic = r.choice(("", "a/", "ä b/", "/")) + r.choice([*QUEUES])
                properties = mqtt_properties(r) if version == MQTTv5 and r.random() < 0.8 else None
                size = r.choice(BODY_SIZES)
                body = (r.randbytes(20) * (size // 20 + 1))[:size]
                publisher.publish(topic, body, r.choice((0, 1, 1, 1)), properties)
