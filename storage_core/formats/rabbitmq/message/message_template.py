"""Encodes the terms of many messages that differ only in body and id: one template, one join for all of them.

`basic_message` defines the term. Source: rabbitmq.md 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct as Packer

from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.cursor import pieces
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message

_ID_SIZE = 16
_ONE_FRAGMENT = Packer(">BIBI")


class MessageTemplate:
    """The exchange, routing keys, properties and persistence that messages have in common."""

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
        """The terms; `ids` holds 16 bytes per message. Each body is one fragment; an empty body has none."""
        count = len(bodies)
        nil, pack = bytes((et.NIL,)), _ONE_FRAGMENT.pack
        sizes = list(map(len, bodies))
        heads = {size: self.head + (pack(et.LIST, 1, et.BINARY, size) if size else b"") for size in set(sizes)}
        rest = len(nil) + len(self.binary) + _ID_SIZE + len(self.tail)
        lengths = {size: len(head) + size + rest for size, head in heads.items()}
        parts: list[bytes] = [b""] * (5 * count)
        parts[::5] = map(heads.__getitem__, sizes)
        parts[1::5] = bodies
        parts[2::5] = [nil + self.binary] * count
        parts[3::5] = pieces(ids, _ID_SIZE)
        parts[4::5] = [self.tail] * count
        whole = b"".join(parts)
        if len(lengths) == 1:
            return pieces(whole, lengths[sizes[0]])
        borders = accumulate(map(lengths.__getitem__, sizes), initial=0)
        return [whole[start:stop] for start, stop in pairwise(borders)]
