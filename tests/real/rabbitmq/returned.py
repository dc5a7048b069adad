"""A queue of a running node whose consumer holds messages, and settles them with `modified`, as AMQP 1.0 permits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika

from tests.real.rabbitmq.node_4 import Node4
from tests.real.rabbitmq.quorum_history import SETTLE_S

QUEUE = "returned"
MESSAGES, HELD = 9, 6
MODIFY = """
{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),
Server = amqqueue:get_pid(Q),
{{ok, {{_, Found}}, _}} = ra:local_query(Server, fun rabbit_fifo:query_consumers/1),
[Consumer] = maps:keys(Found),
{{ok, _, _}} = ra:process_command(Server, rabbit_fifo:make_modify(Consumer, {ids}, {failed}, false, {noted})).
"""


@contextmanager
def a_consumer(node: Node4, arguments: dict[str, Any]) -> Iterator[pika.BlockingConnection]:
    """Publishes messages, of which a consumer holds the first ones without settling them; kills the node afterwards."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", **arguments})
    channel.confirm_delivery()
    time.sleep(SETTLE_S)
    for number in range(MESSAGES):
        listed = pika.BasicProperties(headers={"n": number, "x-opt-text": "of the publisher"})
        channel.basic_publish("", QUEUE, f"body {number}".encode(), listed)
    channel.basic_qos(prefetch_count=HELD)
    channel.basic_consume(QUEUE, lambda *_: None)
    connection.process_data_events(0.5)
    yield connection
    node.kill()
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def modify(node: Node4, ids: list[int], failed: bool, noted: str) -> None:
    """Returns messages of the consumer with annotations, an Erlang map, as the outcome `modified` does."""
    node.eval(MODIFY.format(queue=QUEUE, ids=ids, failed=str(failed).lower(), noted=noted))
