"""Compares a stream of a RabbitMQ 4 node: what a consumer received, and what we read after the node was killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storage_core.formats.rabbitmq.amqp import properties
from tests.rabbitmq import stream_golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node_4 import Node4


def as_later(node: Node4, theirs: bytes, ours: bytes) -> bytes:
    """The properties that a node delivers, as a later node would if ours are like that: without the delivery mode that
    4.0 adds.
    """
    listed = properties.decode(theirs)
    if not node.adds_mode or "delivery_mode" in properties.decode(ours):
        return theirs
    assert listed.pop("delivery_mode") == properties.PERSISTENT_MODE
    return properties.encode(listed)


def copies(headers: Sequence[tuple[bytes, str, Any]]) -> list[str]:
    """The further routing keys of a message: those in its header CC, if that is an array."""
    listed = next((value for name, kind, value in headers if name == b"CC" and kind == "A"), [])
    return [key.decode("utf-8", "replace") for _, key in listed if isinstance(key, bytes)]


def compare(node: Node4, queue: str, count: int) -> None:
    """Compares the node's only stream, of `count` messages: every property and header except the offset, which only a
    consumer gets. Kills the node.
    """
    with Client(node.port) as client:
        delivered = client.stream(queue, count)
    node.kill()
    found = stream_golden.rows(node.vhosts.parents[1] / "stream")
    assert len(found) == count
    for row, delivery in zip(found, delivered, strict=True):
        listed = properties.decode(as_later(node, delivery.properties, row["rawProperties"]))
        assert (row["body"], row["exchange"]) == (delivery.body, ""), listed
        # The keys of CC count only if it was stored as a list, which the delivered array does not tell.
        assert row["routingKeys"] in ([queue], [queue, *copies(listed["headers"])]), listed
        headers = [item for item in listed["headers"] if item[0] != b"x-stream-offset"]
        assert properties.encode({**listed, "headers": headers or None}) == row["rawProperties"], listed
