"""A quorum queue whose single active consumer is giving way to one of a higher priority when the node is killed."""

from __future__ import annotations

import time
from contextlib import suppress

import pika

from tests.real.rabbitmq.node_4 import Node4
from tests.real.rabbitmq.quorum_history import SETTLE_S

NOTED_S = 12.0
"""A queue's node records every 5 s what was applied, and writes that to disk every 5 s."""


def give_way(node: Node4, wait_s: float) -> None:
    """Lets a consumer with a prefetch of 6 hold one of the 21 messages of queue `q`; kills the node `wait_s` later."""
    where = pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0)
    connections = [pika.BlockingConnection(where) for _ in range(3)]
    first, second, publisher = (connection.channel() for connection in connections)
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    publisher.queue_declare("q", durable=True, arguments=arguments)
    publisher.confirm_delivery()
    time.sleep(SETTLE_S)
    publisher.basic_publish("", "q", b"held")
    first.basic_qos(prefetch_count=6)
    first.basic_consume("q", lambda *_: None)
    first.connection.process_data_events(0.5)
    tag = second.basic_consume("q", lambda *_: None, arguments={"x-priority": 1})
    second.basic_cancel(tag)
    for number in range(20):
        publisher.basic_publish("", "q", str(number).encode(), pika.BasicProperties(priority=number % 7))
    time.sleep(wait_s)
    node.kill()
    for connection in connections:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def started(node: Node4, times: int) -> None:
    """Starts the killed node `times` times, and kills it in between."""
    for number in range(times):
        if number:
            node.kill()
        node.start()
        time.sleep(SETTLE_S)
