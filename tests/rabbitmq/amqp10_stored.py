"""The container in which a node of RabbitMQ 4 stores a message received over AMQP 1.0, as a term."""

from __future__ import annotations

from math import isfinite
from struct import pack
from typing import Any

from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.amqp.sections import Value
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom

ID = bytes(range(16))
_RAW = {"decimal32": 0x74, "decimal64": 0x84, "decimal128": 0x94, sections.WIDTHLESS: 0xE0}
_CONSTANTS = {None: Atom("undefined"), True: Atom("true"), False: Atom("false")}


def term_of(value: Value) -> Any:
    """A value as a node decodes it."""
    kind, inner = value
    if kind in {"null", "boolean"}:
        return _CONSTANTS[inner]
    if kind == "list":
        return Atom(kind), [term_of(each) for each in inner]
    if kind == "array":
        return Atom(kind), Atom("utf8"), [term_of(each) for each in inner]
    if kind == "map":
        return Atom(kind), [(term_of(key), term_of(each)) for key, each in inner]
    if kind in _RAW:
        return Atom("as_is"), _RAW[kind], inner
    if isinstance(inner, float) and not isfinite(inner):
        return Atom("as_is"), *((0x72, pack(">f", inner)) if kind == "float" else (0x82, pack(">d", inner)))
    return Atom(kind), inner


def content_of(message: bytes) -> tuple[Any, ...]:
    """The container content for an encoded message whose sections are in the order of the standard."""
    found = sections.parse(message)
    bare = next(each.start for each in found if each.code >= sections.PROPERTIES)
    body = next(each for each in found if each.code in sections.BODIES)
    applied = sections.last_of(found, sections.APPLICATION_PROPERTIES)
    noted = [(term_of(k), term_of(v)) for k, v in sections.pairs_in(message, found, sections.MESSAGE_ANNOTATIONS)]
    places: Any = [] if applied is None else applied.start - bare
    listed: Any = [] if sections.last_of(found, sections.PROPERTIES) is None else 0
    return Atom("v1"), noted, message[bare:], listed, places, body.start - bare, body.code


def container(protocol: str, content: Any, noted: dict[Any, Any] | None = None) -> bytes:
    """The whole term, with the annotations that a queue needs."""
    annotations = {Atom("x"): b"ex", Atom("rk"): [b"k"], Atom("id"): ID, Atom("rts"): 1_700_000_000_123}
    return et.encode((Atom("mc"), Atom(protocol), content, {**annotations, **(noted or {})}))
