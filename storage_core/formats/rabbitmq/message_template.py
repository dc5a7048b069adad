"""Message terms of many messages that differ only in body and id: one template, two joins a message.

The term itself is `basic_message`'s. Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Packer

from storage_core.formats.rabbitmq import basic_message
from storage_core.formats.rabbitmq import external_term as et
from storage_core.formats.rabbitmq.basic_message import Message

_ID_SIZE = 16
_ONE_FRAGMENT = Packer(">BIBI")


class MessageTemplate:
    """Exchange, routing keys, properties and persistence that messages have in common."""

    def __init__(
        self, vhost: bytes, exchange: bytes, routing_keys: Sequence[bytes], properties: bytes, persistent: bool
    ) -> None:
        empty = Message(vhost, exchange, tuple(routing_keys), properties, b"", bytes(_ID_SIZE), persistent)
        term = basic_message.encode(empty)
        self.tail = et.encode(et.TRUE if persistent else et.FALSE)[1:]
        self.binary = bytes((et.BINARY,)) + _ID_SIZE.to_bytes(4, "big")
        # Before the id: NIL of the empty fragment list.
        self.head = term[: -(len(self.tail) + _ID_SIZE + len(self.binary) + 1)]

    def terms(self, bodies: Sequence[bytes], ids: bytes) -> list[bytes]:
        """The terms; `ids` holds 16 bytes a message. Each body is one fragment, an empty one none."""
        head, binary, tail, pack = self.head, self.binary, self.tail, _ONE_FRAGMENT.pack
        nil = bytes((et.NIL,))
        return [
            b"".join(
                (head, pack(et.LIST, 1, et.BINARY, len(body)), body, nil, binary, ids[at : at + _ID_SIZE], tail)
                if body
                else (head, nil, binary, ids[at : at + _ID_SIZE], tail)
            )
            for at, body in zip(range(0, len(ids), _ID_SIZE), bodies, strict=True)
        ]
