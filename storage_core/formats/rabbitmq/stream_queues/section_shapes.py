"""Finds messages with the layout of a sample by comparing stretches of bytes, and builds their property lists at once.

`sections` and `delivered` decode single messages; both ways return the same for every message that has a shape.
Source: docs/format/rabbitmq-streams.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_scalar
from storage_core.errors import FormatError
from storage_core.formats import spans
from storage_core.formats.layout import Bytes, values_at
from storage_core.formats.rabbitmq.amqp import properties, section_values, sections
from storage_core.formats.rabbitmq.amqp.sections import Element, Section
from storage_core.formats.rabbitmq.binary_columns import fixed
from storage_core.formats.rabbitmq.erlang.term_layout import Stretch, stretch
from storage_core.formats.rabbitmq.message.converted import container_view
from storage_core.formats.rabbitmq.stream_queues import delivered
from storage_core.formats.rabbitmq.stream_queues.message_shape import Matched, Shape, Size, Value

_PLAIN_KINDS = frozenset(range(sections.HEADER, sections.FOOTER + 1)) - {sections.SEQUENCE}
_FLAGS = dict(zip((name for name, _ in properties.FIELDS), (1 << (15 - i) for i in range(14)), strict=True))


_Listed = tuple[list[tuple[str, Value | bytes]], list[tuple[bytes, Value]]]
"""The fields and the headers of a property list."""


@dataclass
class _Draft:
    """A shape under construction, while one message is walked."""

    data: bytes
    stretches: list[Stretch] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    begin: int = 0
    free: list[tuple[int, int]] = field(default_factory=list)

    def close(self, stop: int, width: int, after: int) -> None:
        """Ends a stretch at `stop`; the next begins at `after`, past a length of `width` bytes and what it counts."""
        begin = self.begin
        free = [(a - begin, b - begin) for a, b in self.free]
        self.stretches.append(stretch(self.data[begin:stop], free))
        self.widths.append(width)
        self.begin, self.free = after, []

    def value(self, element: Element) -> Value:
        """Adds a value that may differ between rows."""
        width = sections.LENGTH_SIZES.get(element.code >> 4, 0)
        number = len(self.stretches)
        if width:
            self.close(element.value - width, width, element.stop)
            return Value(element.code, number, 0, True)
        at = element.value - self.begin
        if element.value < element.stop:
            self.free.append((element.value, element.stop))
        return Value(element.code, number, at, False)


def shape_of(data: bytes, of_3_13: bool = False) -> Shape | None:
    """The shape of one message; None if it has none and the decoder must read it alone. `of_3_13`: see `delivered`."""
    try:
        found = sections.parse(data)
        sample = delivered.delivered(data, of_3_13)
    except FormatError:
        return None
    codes = [section.code for section in found]
    bodies = [section for section in found if section.code in {sections.DATA, sections.VALUE}]
    if len(set(codes)) != len(codes) or not set(codes) <= _PLAIN_KINDS or len(bodies) != 1:
        return None
    elements = [each for section in found for each in (section.value, *section.inner)]
    if any(each.code == sections.DESCRIBED for each in elements):
        return None
    text = bodies[0].value
    if text.code >> 4 not in {0xA, 0xB} or sample.body != ((text.value, text.stop),):
        return None
    draft = _Draft(data)
    values = {section.code: _walk(draft, section) for section in found}
    draft.close(len(data), 0, len(data))
    contained = of_3_13 or sections.HEADER in codes
    return _mapped(draft, {section.code: section for section in found}, values, bodies[0].code, contained)


def _walk(draft: _Draft, section: Section) -> list[Value | bytes]:
    """The values of a section; the keys of a map are bytes, which all rows share."""
    outer = section.value
    width = sections.LENGTH_SIZES.get(outer.code >> 4, 0)
    if outer.code == sections.LIST_0:
        return []
    if outer.code not in {*sections.LISTS, *sections.MAPS}:
        return [draft.value(outer)]
    number, at = len(draft.stretches), outer.value - width - draft.begin
    draft.free.append((outer.value - width, outer.value))
    found: list[Value | bytes] = []
    for index, element in enumerate(section.inner):
        if outer.code in sections.MAPS and index % 2 == 0:
            found.append(draft.data[element.value : element.stop])
        else:
            found.append(draft.value(element))
    draft.sizes.append(Size(number, at, width, len(draft.stretches), outer.stop - draft.begin))
    return found


def _mapped(
    draft: _Draft, found: dict[int, Section], values: dict[int, list[Value | bytes]], body: int, contained: bool
) -> Shape | None:
    """Maps the values to fields, by the rules for containers if `contained`; None if only the decoder can do so."""
    noted = _pairs(values.get(sections.MESSAGE_ANNOTATIONS, []))
    applied = _pairs(values.get(sections.APPLICATION_PROPERTIES, []))
    if noted is None or applied is None or len({key for key, _ in noted}) < len(noted):
        return None
    known = _CONTAINER_KEYS if contained else dict.fromkeys(_CONTAINER_KEYS, frozenset(sections.TEXTS))
    maps = [(found[code], codes) for code, codes in known.items() if code in found]
    if any(key.code not in codes for each, codes in maps for key in each.inner[::2]):
        return None
    texts = dict(noted)
    places = texts.get(delivered.EXCHANGE), texts.get(delivered.ROUTING_KEY)
    if any(value is not None and value.code not in _SHORT for value in places):
        return None
    listed = (_of_container if contained else _of_3_10)(values, texts, applied)
    if listed is None:
        return None
    fields, headers = listed
    if not all(value.code in _HEADS for _, value in headers) or any(len(key) > 255 for key, _ in headers):
        return None
    order = [name for name, _ in properties.FIELDS]
    fields.sort(key=lambda each: order.index(each[0]))
    (only,) = values[body]
    if isinstance(only, bytes):
        return None
    stretches, widths, sizes = tuple(draft.stretches), tuple(draft.widths), tuple(draft.sizes)
    replies = contained and _replies_to_queue(draft.data, found.get(sections.PROPERTIES))
    return Shape(stretches, widths, sizes, *places, only, tuple(fields), tuple(headers), replies)


def _replies_to_queue(data: bytes, listed: Section | None) -> bool:
    """Whether the reply_to of a message is the address of a queue, without escapes."""
    named = dict(zip(container_view.PROPERTY_LIST, listed.inner if listed else (), strict=False))
    if (reply := named.get("reply_to")) is None:
        return False
    text = data[reply.value : reply.stop]
    return text.startswith(container_view.REPLY_QUEUE) and container_view.ESCAPE.encode() not in text


def _of_3_10(
    values: dict[int, list[Value | bytes]], noted: dict[bytes, Value], applied: list[tuple[bytes, Value]]
) -> _Listed | None:
    """Fields and headers as a node of 3.10 builds them; see `delivered`."""
    fields = [(name, noted[key]) for key, name in delivered.ANNOTATIONS.items() if key in noted]
    for name, value in zip(delivered.PROPERTY_LIST, values.get(sections.PROPERTIES, []), strict=False):
        if name is not None and isinstance(value, Value) and value.code != sections.NULL:
            fields.append(("timestamp" if name == "creation_time" else name, value))
    for key, name in ((delivered.TYPE, "type"), (delivered.APP_ID, "app_id")):
        fields += [(name, value) for other, value in applied if other == key]
    if len({name for name, _ in fields}) < len(fields) or not all(_is_plain_field(*each) for each in fields):
        return None
    headers = [(key, value) for key, value in applied if key not in {delivered.TYPE, delivered.APP_ID}]
    return [*fields], headers


def _of_container(
    values: dict[int, list[Value | bytes]], noted: dict[bytes, Value], applied: list[tuple[bytes, Value]]
) -> _Listed | None:
    """Fields and headers of a message at a later node; see `container_view`."""
    fields: list[tuple[str, Value | bytes]] = []
    for header_field, stated in zip(_HEADER_FIELDS, values.get(sections.HEADER, []), strict=False):
        if isinstance(stated, bytes) or (header_field, stated.code) not in _HEADER_CODES:
            return None
        if stated.code != sections.NULL:
            fields.append((header_field, _HEADER_CODES[header_field, stated.code] or stated))
    for name, value in zip(container_view.PROPERTY_LIST, values.get(sections.PROPERTIES, []), strict=False):
        if name is None or isinstance(value, bytes) or value.code == sections.NULL:
            continue
        if not _is_plain_field(name, value) or (name in _ONLY_UTF8 and value.code != 0xA1):
            return None
        fields.append((name, value))
    if (kind := noted.get(container_view.TYPE)) is not None:
        fields.append(("type", kind))
        if kind.code not in _SHORT:
            return None
    alone = {container_view.CC, container_view.RECEIVED, container_view.DEATHS, *container_view.NOTED.values()}
    headers = [(key, value) for key, value in noted.items() if container_view.is_header(key)] + applied
    if alone & noted.keys() or len(dict(headers)) < len(headers) or any(v.code in _BINARIES for _, v in headers):
        return None
    return fields, sorted(headers, key=lambda each: each[0])


def _pairs(listed: list[Value | bytes]) -> list[tuple[bytes, Value]] | None:
    pairs = list(zip(listed[::2], listed[1::2], strict=False))
    good = [(key, value) for key, value in pairs if isinstance(key, bytes) and isinstance(value, Value)]
    return good if len(good) == len(pairs) == len(listed) / 2 else None


_SHORT = frozenset({0xA1, 0xA3})
"""Constructors of texts that are never too long for a property."""
_BINARIES = frozenset({0xA0, 0xB0})
_ONLY_UTF8 = {*container_view.IDS, *container_view.LEFT_OUT_UNLESS_TEXT}
_CONTAINER_KEYS = {
    sections.MESSAGE_ANNOTATIONS: frozenset({0xA3, 0xB3}), sections.APPLICATION_PROPERTIES: frozenset({0xA1, 0xB1}),
}  # fmt: skip
"""Constructors of the keys whose values a node reads, by section."""
_HEADER_FIELDS = ("delivery_mode", "priority", "expiration")
_HEADER_CODES: dict[tuple[str, int], bytes] = {
    ("delivery_mode", sections.TRUE): b"\2", ("delivery_mode", sections.FALSE): b"\1",
    ("delivery_mode", sections.NULL): b"", ("priority", sections.NULL): b"", ("priority", 0x50): b"",
    ("expiration", sections.NULL): b"", ("expiration", sections.UINT_0): b"\x010", ("expiration", 0x52): b"",
    ("expiration", 0x70): b"",
}  # fmt: skip
"""Allowed constructors of the first values of a header section, and the property bytes of those that are constant."""
_BYTES = frozenset({*_SHORT, 0xA0})


def _is_plain_field(name: str, value: Value) -> bool:
    """Whether a field's bytes are copied to the property list unchanged, or, for a timestamp, converted to seconds."""
    if name == "timestamp":
        return value.code == 0x83
    if name in {"delivery_mode", "priority"}:
        return value.code == 0x50
    return value.code in (_BYTES if name == "user_id" else _SHORT)


_HEADS = section_values.KNOWN - {*section_values.ULONG}
"""Constructors of headers; 3.10 delivers a ulong that is not a long as digits."""


def property_lists(shape: Shape, found: Matched, buffer: Bytes) -> pa.BinaryArray:
    """The property lists that a node builds for the rows of one shape, all of which are ok. Shape (n,)."""
    flags = sum(_FLAGS[name] for name, _ in shape.fields) | (_FLAGS["headers"] if shape.headers else 0)
    parts: list[Any] = [flags.to_bytes(2, "big")]
    table_done = not shape.headers
    order = [name for name, _ in properties.FIELDS]
    for name, value in shape.fields:
        if not table_done and order.index(name) > order.index("headers"):
            parts += _table(shape, found, buffer)
            table_done = True
        skipped = len(container_view.REPLY_QUEUE) if shape.replies_to_queue and name == "reply_to" else 0
        parts += _field(shape, found, buffer, value, skipped)
    if not table_done:
        parts += _table(shape, found, buffer)
    return _joined(parts, len(found.ok))


def _joined(parts: list[Any], count: int) -> pa.BinaryArray:
    """Joins constants and arrays into one array; adjacent constants are merged."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if all(isinstance(part, bytes) for part in merged):
        return pa.repeat(as_scalar(b"".join(merged)), count)
    scalars = [as_scalar(part) if isinstance(part, bytes) else part for part in merged]
    return pc.binary_join_element_wise(*scalars, as_scalar(b""))


def _field(shape: Shape, found: Matched, buffer: Bytes, value: Value | bytes, skipped: int) -> list[Any]:
    """The parts of a property: a short string with its length byte, without its first `skipped` bytes, an octet, a time
    in seconds, or a number as digits.
    """
    if isinstance(value, bytes):
        return [value]
    if value.counted:
        start, stop = shape.span(value, found)
        if skipped:
            start = start + skipped
            return [fixed((stop - start).astype("u1")), spans.gather(buffer, start, stop)]
        return [spans.gather(buffer, start - 1, stop)]
    start = found.begins[value.number] + value.at
    if value.code == 0x83:
        return [fixed(section_values.seconds(buffer, start))]
    if value.code in {0x52, 0x70}:
        numbers = values_at(buffer, "u1" if value.code == 0x52 else ">u4", start).astype("u4")
        digits = pc.cast(pa.array(numbers), pa.string())
        return [fixed(pc.binary_length(digits).to_numpy().astype("u1")), digits.cast(pa.binary())]
    return [spans.gather(buffer, start, start + 1)]


def _table(shape: Shape, found: Matched, buffer: Bytes) -> list[Any]:
    parts: list[Any] = []
    sizes = np.zeros(len(found.ok), np.int64)
    for key, value in shape.headers:
        head = bytes((len(key),)) + key
        for part in (head, *_item(shape, found, buffer, value)):
            parts.append(part)
            sizes += len(part) if isinstance(part, bytes) else np.diff(spans.offsets_of(part))
    return [fixed(sizes.astype(">u4")), *parts]


def _item(shape: Shape, found: Matched, buffer: Bytes, value: Value) -> list[Any]:
    """A header's type letter and value."""
    if value.counted:
        return section_values.items(buffer, value.code, *shape.span(value, found))
    start = found.begins[value.number] + value.at
    return section_values.items(buffer, value.code, start, start + sections.FIXED_SIZES[value.code >> 4])
