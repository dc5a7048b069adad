"""Terms and property lists found by compiled loops: the same as the numpy twins find, also in garbage."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compiled import loading
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.amqp.properties import PropertySpans
from storage_core.formats.rabbitmq.erlang import term_layout
from storage_core.formats.rabbitmq.erlang.term_layout import Shape, ShapedTerms, stretch

FAR = [-(1 << 63), -(1 << 32), -1, 1 << 31, 1 << 32, (1 << 62), (1 << 63) - 1]
SIZES = [0, 1, 2, 5, 40, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
SHAPES = [
    Shape(stretch(b"head"), stretch(b"mid"), stretch(b"tail-of-it")),
    Shape(stretch(b"he..ad", [(2, 4)]), stretch(b""), stretch(b"t")),
    Shape(stretch(b"...", [(0, 3)]), stretch(b"m..d.", [(1, 3), (4, 5)]), stretch(b"")),
]


def terms_of(shape: Shape, setting: str, buffer: Bytes, starts: Positions, stops: Positions) -> ShapedTerms:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        return term_layout.locate(buffer, starts, stops, shape)


def lists_of(setting: str, buffer: Bytes, starts: Positions, stops: Positions) -> PropertySpans:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        return properties.locate(buffer, starts, stops)


def spelled(part: term_layout.Stretch, random: Random) -> bytes:
    data = bytearray(random.randbytes(part.size))
    for offset, piece in part.pieces:
        data[offset : offset + len(piece)] = piece
    return bytes(data)


def term(shape: Shape, random: Random) -> bytes:
    """A term of the shape, which may have a wrong length or byte or be cut."""
    listed, body = random.randbytes(random.choice([0, 1, 30])), random.randbytes(random.choice([0, 1, 200]))
    sizes = [random.choice(SIZES) if random.random() < 0.15 else len(part) for part in (listed, body)]
    parts = [
        spelled(shape.before, random), sizes[0].to_bytes(4, "big"), listed,
        spelled(shape.between, random), sizes[1].to_bytes(4, "big"), body, spelled(shape.after, random),
    ]  # fmt: skip
    data = bytearray(b"".join(parts))
    if random.random() < 0.2 and data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data[: random.randrange(len(data) + 1)] if random.random() < 0.1 else data)


def laid(parts: list[bytes], random: Random) -> tuple[Bytes, Positions, Positions]:
    """The parts one after another, and their spans, some of which are moved, cut or point anywhere."""
    stops = np.cumsum([len(part) for part in parts])
    starts = stops - [len(part) for part in parts]
    for edges in (starts, stops):
        for row in range(len(parts)):
            if random.random() < 0.1:
                edges[row] = random.choice([*FAR, int(edges[row]) - 1, int(edges[row]) + 3, int(stops[-1])])
    return np.frombuffer(b"".join(parts), np.uint8), starts, stops


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.sampled_from(SHAPES), st.integers(1, 40))
def test_terms(seed: int, shape: Shape, count: int) -> None:
    random = Random(seed)
    given_terms = laid([term(shape, random) for _ in range(count)], random)
    by_loop, by_numpy = (terms_of(shape, setting, *given_terms) for setting in ("always", "never"))
    assert by_loop.ok.tolist() == by_numpy.ok.tolist()
    for name in ("property_starts", "property_stops", "body_starts", "body_stops"):
        assert getattr(by_loop, name)[by_loop.ok].tolist() == getattr(by_numpy, name)[by_loop.ok].tolist()


def property_list(random: Random) -> bytes:
    """A list whose flags sometimes promise more or less than it contains."""
    flags = random.choice([0, 0x8000, 0x9008, 0xFFFC, random.randrange(1 << 16) & 0xFFFC, random.randrange(1 << 16)])
    parts = [flags.to_bytes(2, "big")]
    for index, (_, kind) in enumerate(properties.FIELDS):
        if flags & 1 << (15 - index):
            value = random.randbytes(random.choice([0, 1, 9, 60]))
            if kind == properties.SHORT:
                parts.append(bytes((random.choice([len(value), len(value), 255]),)) + value)
            elif kind == properties.TABLE:
                parts.append(random.choice([len(value), len(value), *SIZES]).to_bytes(4, "big") + value)
            else:
                parts.append(random.randbytes(1 if kind == properties.OCTET else 8))
    data = b"".join(parts)
    return data[: random.randrange(len(data) + 1)] if random.random() < 0.2 else data


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.booleans())
def test_property_lists(seed: int, count: int, alike: bool) -> None:
    random = Random(seed)
    lists = [property_list(random)] * count if alike else [property_list(random) for _ in range(count)]
    given_lists = laid(lists, random)
    by_loop, by_numpy = (lists_of(setting, *given_lists) for setting in ("always", "never"))
    assert by_loop.ok.tolist() == by_numpy.ok.tolist()
    assert list(by_loop.fields) == list(by_numpy.fields)
    for name, spans in by_numpy.fields.items():
        found = by_loop.fields[name]
        assert found.rows.tolist() == spans.rows.tolist()
        assert (found.starts.tolist(), found.stops.tolist()) == (spans.starts.tolist(), spans.stops.tolist())
