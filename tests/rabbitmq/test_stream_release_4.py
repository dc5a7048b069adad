"""Stream messages with a header section, as releases from 3.13 on store them."""

from __future__ import annotations

import random
from contextlib import suppress
from struct import pack

import numpy as np
import pytest

from storage_core.errors import FormatError
from storage_core.formats import spans
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.stream_queues import delivered
from storage_core.formats.rabbitmq.stream_queues.section_shapes import property_lists, shape_of
from storage_core.rabbitmq.index.entries import new_entries
from storage_core.rabbitmq.stream_queues.batch import MessageReader
from storage_core.rabbitmq.stream_queues.columns import MessageColumns
from storage_core.rabbitmq.stream_queues.rows import FIELDS
from tests.rabbitmq import amqp10

OF_4_0_5 = bytes.fromhex(
    "005370c00b0541500370055d4a804143005372c14a0aa30c782d62617369632d74797065a1027479a303782d68a10161a305782d617272c0"
    "06025401a1017aa30a782d65786368616e6765a100a30d782d726f7574696e672d6b6579a10173005373c02e0da1026d69a0056775657374"
    "4040a1027274a1026369a3026374a302636540830000018bcfe56800a10261694040005374c10602a101685401005375a003616c6c"
)
AN_ARRAY = bytes.fromhex("a305782d617272c006025401a1017a")


def test_a_message_as_release_4_stores_it() -> None:
    """What a node of 4.0.5 stored and delivered for a message with every property."""
    found = properties.decode(delivered.delivered(OF_4_0_5).properties)
    assert found == {
        "content_type": b"ct", "content_encoding": b"ce", "delivery_mode": 2, "priority": 3, "correlation_id": b"ci",
        "reply_to": b"rt", "expiration": b"90000000", "message_id": b"mi", "timestamp": 1_700_000_000, "type": b"ty",
        "user_id": b"guest", "app_id": b"ai",
        "headers": [(b"h", "I", 1), (b"x-arr", "A", [("I", 1), ("S", b"z")]), (b"x-h", "S", b"a")],
    }  # fmt: skip
    plain = OF_4_0_5.replace(bytes.fromhex("a305782d617272c006025401a1017a"), b"").replace(
        b"\x4a\x0a\xa3", b"\x3b\x08\xa3"
    )
    shape = shape_of(plain)
    assert shape is not None
    buffer, start = np.frombuffer(plain, np.uint8), np.zeros(1, np.int64)
    lists = property_lists(shape, shape.matches(buffer, start, start + len(plain)), buffer).to_pylist()
    assert lists == [delivered.delivered(plain).properties]


def test_damaged_headers_of_release_4() -> None:
    """No error but a FormatError, whatever is changed and however deeply a header is nested."""
    draw = random.Random(4)
    for _ in range(20_000):
        data = bytearray(OF_4_0_5)
        for _ in range(draw.choice((1, 2, 5))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        with suppress(FormatError):
            delivered.delivered(bytes(data))
        shape_of(bytes(data))
    deep = b"\x40"
    for _ in range(3000):
        deep = amqp10.listed(0xC0, [deep], True)
    noted = amqp10.listed(0xC1, [amqp10.counted(0xA3, b"x-h"), deep], True)
    data = amqp10.section(0x70, amqp10.listed(0xC0, [b"\x41"])) + amqp10.section(0x72, noted)
    with pytest.raises(FormatError, match="nested deeper than 32"):
        delivered.delivered(data)
    cut = OF_4_0_5.replace(AN_ARRAY, AN_ARRAY[:-3] + b"\xa1\x00\x40").replace(b"\xc0\x06\x02", b"\xc0\x06\x05")
    with pytest.raises(FormatError, match="a value reaches beyond its list"):
        delivered.delivered(cut)


def test_bodies_of_release_4() -> None:
    """Verified with a node of 4.0.5: data sections are joined; a value is delivered as its sections."""
    begin = amqp10.section(0x70, amqp10.listed(0xC0, [b"\x41"]))
    parts = [amqp10.section(0x75, amqp10.counted(0xA0, each)) for each in (b"one", b"", b", two")]
    footer = amqp10.section(0x78, amqp10.listed(0xC1, [amqp10.counted(0xA3, b"x-f"), b"\x41"]))
    value = amqp10.section(0x77, amqp10.counted(0xA1, b"text"))
    messages = [begin + b"".join(parts) + footer, begin + value + footer, begin + parts[0], begin + parts[0] + value]
    buffer = np.frombuffer(b"".join(messages), np.uint8)
    stops = np.cumsum([len(each) for each in messages])
    starts = stops - [len(each) for each in messages]
    found = MessageReader().batch(new_entries(len(messages), FIELDS), buffer, starts, stops, {})
    bodies = spans.gather(found.buffer, *found.parts.body).to_pylist()
    assert bodies == [b"one, two", value + footer, b"one", parts[0] + value]
    kinds = [properties.decode(each).get("type") for each in found.parts.property_lists.to_pylist()]
    assert kinds == [None, b"amqp-1.0", None, b"amqp-1.0"]


def test_values_that_are_not_copied_among_messages_of_one_shape() -> None:
    """Addresses of queues, which a node of 4.3 writes, and numbers that are not finite."""
    replies = [b"rt", b"/queues/a%20b", b"/queues/", b"/queues/%", b"queues/"] * 12
    numbers = [(0x82, ">d"), (0x72, ">f")]
    messages = []
    for index, reply in enumerate(replies):
        code, layout = numbers[index // 30]
        value = bytes((code,)) + pack(layout, (1.5, float("nan"), float("-inf"))[index % 3])
        messages.append(
            amqp10.section(0x70, amqp10.listed(0xC0, [b"\x42"]))
            + amqp10.section(0x73, amqp10.listed(0xC0, [b"\x40"] * 4 + [amqp10.counted(0xA1, reply)]))
            + amqp10.section(0x74, amqp10.listed(0xC1, [amqp10.counted(0xA1, b"h"), value]))
            + amqp10.section(0x75, amqp10.counted(0xA0, b"body"))
        )
    stops = np.cumsum([len(each) for each in messages])
    starts = stops - [len(each) for each in messages]
    buffer = np.frombuffer(b"".join(messages), np.uint8)
    found = MessageReader().batch(new_entries(len(messages), FIELDS), buffer, starts, stops, {})
    lists = found.parts.property_lists.to_pylist()
    assert lists == [delivered.delivered(each).properties for each in messages]
    shown = [properties.decode(each) for each in lists]
    assert [each.get("reply_to") for each in shown[:5]] == [b"rt", b"a b", b"", None, b"queues/"]
    assert ["headers" in each for each in shown] == [index % 3 == 0 for index in range(60)]
    assert {each["delivery_mode"] for each in shown} == {1}


def test_replies_to_queues_are_found_at_once() -> None:
    """A node of 4.3 writes each reply_to as the address of a queue; those without escapes share one shape."""
    replies = [b"/queues/", b"/queues/a", b"/queues/amq.gen-%d" % 10**200, b"/queues/a%20b", b"/queue", b"", b"rt"]
    messages = [
        amqp10.section(0x70, amqp10.listed(0xC0, [b"\x41"]))
        + amqp10.section(0x73, amqp10.listed(0xC0, [b"\x40"] * 4 + [amqp10.counted(0xA1, reply)]))
        + amqp10.section(0x75, amqp10.counted(0xA0, b"body"))
        for reply in replies
    ]
    stops = np.cumsum([len(each) for each in messages])
    starts = stops - [len(each) for each in messages]
    buffer = np.frombuffer(b"".join(messages), np.uint8)
    for sample, rows in ((1, [0, 1, 2]), (6, [4, 5, 6])):
        shape = shape_of(messages[sample])
        assert shape is not None
        assert np.flatnonzero(shape.matches(buffer, starts, stops).ok).tolist() == rows
        found = shape.matches(buffer, starts[rows], stops[rows])
        assert property_lists(shape, found, buffer).to_pylist() == [
            delivered.delivered(messages[row]).properties for row in rows
        ]


def test_a_message_that_does_not_say_whether_it_is_durable() -> None:
    """As a node of 4.3.6 delivers it; one of 4.0.5 delivers mode 2."""
    data = amqp10.section(0x70, amqp10.listed(0xC0, [b"\x40", b"\x50\3"])) + amqp10.section(0x75, b"\xa0\1x")
    found = properties.decode(delivered.delivered(data).properties)
    assert (found.get("delivery_mode"), found["priority"]) == (None, 3)


def test_the_routing_keys_of_copies() -> None:
    """A node of 4.3.6 stores the header CC as an annotation; a consumer of a classic queue has the same keys. An array,
    as a client of AMQP 1.0 may send, is none of them (mc_amqp:essential_properties).
    """
    begin = amqp10.section(0x70, amqp10.listed(0xC0, [b"\x41"]))
    copies = amqp10.listed(0xC0, [amqp10.counted(0xA1, b"one"), amqp10.counted(0xA1, b"two")])
    own = [amqp10.counted(0xA3, b"x-routing-key"), amqp10.counted(0xA1, b"key")]
    array = b"\xe0" + bytes([6, 1, 0xA1]) + b"\x03one"
    name = amqp10.counted(0xA3, b"x-cc")
    noted = [[*own, name, copies], own, [name, copies], [], [*own, name, array]]
    body = amqp10.section(0x75, amqp10.counted(0xA0, b"body"))
    messages = [begin + amqp10.section(0x72, amqp10.listed(0xC1, pairs)) + body for pairs in noted]
    stops = np.cumsum([len(each) for each in messages])
    starts = stops - [len(each) for each in messages]
    found = MessageReader().batch(
        new_entries(len(messages), FIELDS), np.frombuffer(b"".join(messages), np.uint8), starts, stops, {}
    )
    columns = MessageColumns(["q"])
    assert columns("routingKeys", found).to_pylist() == [["key", "one", "two"], ["key"], ["one", "two"], ["q"], ["key"]]
