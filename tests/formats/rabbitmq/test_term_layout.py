"""Terms of one shape: a batch that is large enough for shapes gives the same results as each of its terms alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.rabbitmq.erlang import term_layout
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans

pytestmark = pytest.mark.usefixtures("either_loops")

FIELDS = [name for name in MessageSpans.__dataclass_fields__ if name not in ("keys", "pieces", "known", "persistent")]


def message(random: Random, number: int) -> Message:
    key = random.choice([(b"orders",), (b"ship",), (b"a", b"longer"), ()])
    listed = bytes(2) if number % 3 else b"\x80\x00" + bytes((number % 9,)) + b"t" * (number % 9)
    body = random.randbytes(random.choice([0, 1, 7, 300]))
    return Message(b"/", random.choice([b"", b"logs"]), key, listed, body, random.randbytes(16), random.random() < 0.7)


def laid(terms: list[bytes]) -> tuple[Bytes, Positions, Positions]:
    sizes = np.array([len(term) for term in terms], np.int64)
    stops = np.cumsum(sizes)
    return np.frombuffer(b"".join(terms), np.uint8), stops - sizes, stops


def check_alone(terms: list[bytes]) -> int:
    """Compares the batch with each term alone; returns how many terms are usual."""
    buffer, starts, stops = laid(terms)
    many = basic_message.locate(buffer, starts, stops)
    assert (np.diff(many.keys.rows) >= 0).all()
    for row in range(len(terms)):
        alone = basic_message.locate(buffer, starts[row : row + 1], stops[row : row + 1])
        assert many.ok[row] == alone.ok[0], row
        if not alone.ok[0]:
            continue
        assert many.persistent[row] == alone.persistent[0]
        for name in FIELDS:
            assert getattr(many, name)[row] == getattr(alone, name)[0], (row, name)
        keys = many.keys.rows == row
        assert many.keys.starts[keys].tolist() == alone.keys.starts.tolist()
        assert many.keys.stops[keys].tolist() == alone.keys.stops.tolist()
    return int(many.ok.sum())


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_shapes(seed: int) -> None:
    random = Random(seed)
    assert check_alone([basic_message.encode(message(random, number)) for number in range(400)]) == 400


def test_one_shape_whatever_its_names_carry() -> None:
    messages = [
        Message(b"/", b"ex%02d" % (n % 7), (b"k%03d" % n,), bytes(2), b"b" * (n + 1), b"i" * 16, True)
        for n in range(200)
    ]
    terms = [basic_message.encode(each) for each in messages]
    assert check_alone(terms) == 200
    buffer, starts, stops = laid(terms)
    shape = basic_message._shape_of(buffer, int(starts[0]), int(stops[0]), basic_message.ID_SIZE)
    assert shape is not None
    assert shape.located(buffer, starts, stops)[1].all()


def test_batches_of_other_shapes_before_change_nothing() -> None:
    random = Random(9)
    shapes = [Message(b"/", exchange, keys, bytes(2), body, b"i" * 16, persistent)
              for exchange in (b"", b"logs") for keys in ((), (b"key",), (b"a", b"longer"), (b"c", b"longer"))
              for body in (b"", b"body") for persistent in (True, False)]  # fmt: skip
    for _ in range(40):
        terms = [basic_message.encode(random.choice(shapes))] * 100
        assert check_alone(terms) == len(terms)
    assert check_alone([basic_message.encode(random.choice(shapes)) for _ in range(400)]) == 400


def test_every_changed_byte_is_seen() -> None:
    """For each byte of a term, a copy with that byte changed; and each prefix of the term."""
    term = basic_message.encode(Message(b"/", b"logs", (b"key",), bytes(2), b"body", b"i" * 16, True))
    for change in (0x01, 0x80):
        changed = [term[:at] + bytes((term[at] ^ change,)) + term[at + 1 :] for at in range(len(term))]
        usual = check_alone([term] * 3 + changed)
        assert 3 < usual < 3 + len(term) / 2
    assert check_alone([term] * 3 + [term[:stop] for stop in range(len(term))]) == 3


def test_spans_outside_of_the_buffer() -> None:
    term = basic_message.encode(Message(b"/", b"", (b"k",), bytes(2), b"body", b"i" * 16, True))
    buffer, starts, stops = laid([term] * 100)
    starts, stops = starts.copy(), stops.copy()
    starts[50], stops[60], stops[70], starts[80] = -5, len(buffer) + 9, starts[70], stops[80] + 3
    assert np.flatnonzero(~basic_message.locate(buffer, starts, stops).ok).tolist() == [50, 60, 70, 80]


def test_a_stretch_compares_what_is_not_free() -> None:
    buffer = np.frombuffer(b"12abc\0Xdef\0\0abc\0Ydef\0\0abcc", np.uint8)
    at = np.array([2, 12, 22])
    free = term_layout.stretch(b"abc\0Xdef\0\0", [(4, 4), (4, 5)])
    assert free.pieces == ((0, b"abc\0"), (5, b"def\0\0"))
    assert free.matches(buffer, at).tolist() == [True, True, False]
    assert term_layout.stretch(b"abc\0Xdef\0\0").matches(buffer, at).tolist() == [True, False, False]
    assert term_layout.stretch(b"abc\0").matches(buffer, at).tolist() == [True, True, False]
    assert term_layout.stretch(b"abc").matches(buffer, at).tolist() == [True, True, True]


@given(
    data=st.binary(min_size=1, max_size=60),
    sample=st.binary(min_size=1, max_size=9),
    free=st.lists(st.integers(0, 9), max_size=4, unique=True),
    draws=st.data(),
)
def test_pieces_of_a_stretch(data: bytes, sample: bytes, free: list[int], draws: st.DataObject) -> None:
    edges = sorted(min(edge, len(sample)) for edge in free[: len(free) // 2 * 2])
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    sampled = st.integers(-3, len(data) + 3)
    at = draws.draw(st.lists(sampled, min_size=1, max_size=9))
    start = draws.draw(sampled.filter(lambda place: 0 <= place <= len(data)))
    data = data[:start] + sample + data[start:]
    kept = [place for place in range(len(sample)) if not any(low <= place < high for low, high in spans)]
    found = term_layout.stretch(sample, spans).matches(np.frombuffer(data, np.uint8), np.array([*at, start], np.int64))
    for place, same in zip([*at, start], found.tolist(), strict=True):
        if 0 <= place <= len(data) - len(sample):
            assert same == all(data[place + byte] == sample[byte] for byte in kept), place
