"""The walk from record to record: guesses of where records begin make it faster and never change its result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.rocketmq.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_SIZE
from storage_core.formats.rocketmq.record_walk import Stop, Walk, walk

pytestmark = pytest.mark.usefixtures("either_loops")

SIZES = st.sampled_from([MIN_SIZE, MIN_SIZE + 1, 120, 300])
HEADS = st.tuples(SIZES, st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]))
TAILS = st.sampled_from([b"", b"\0" * 40, b"\0\0\0\x10" + MAGIC_BLANK.to_bytes(4, "big") + bytes(8), b"\0\0\0\x05junk?",
                         b"\x7f\xff\xff\xff" + MAGIC_V1.to_bytes(4, "big"), b"\x80\0\0\0" + bytes(20)])  # fmt: skip


def records(heads: list[tuple[int, int]]) -> bytes:
    return b"".join(size.to_bytes(4, "big") + magic.to_bytes(4, "big") + bytes(size - 8) for size, magic in heads)


def stepped(data: bytes) -> tuple[list[int], list[int], int]:
    """The walk, one record after another."""
    at, starts, sizes = 0, [], []
    while at + 8 <= len(data):
        size, magic = (int.from_bytes(data[low : low + 4], "big", signed=low == at) for low in (at, at + 4))
        if size < MIN_SIZE or magic not in (MAGIC_V1, MAGIC_V2) or at + size > len(data):
            break
        starts.append(at)
        sizes.append(size)
        at += size
    return starts, sizes, at


def fields(found: Walk) -> tuple[list[int], list[int], int, Stop]:
    return found.starts.tolist(), found.sizes.tolist(), found.stop, found.reason


@given(st.lists(HEADS, max_size=30), TAILS, st.data())
def test_any_guesses_give_the_same_walk(heads: list[tuple[int, int]], tail: bytes, data: st.DataObject) -> None:
    raw = records(heads) + tail
    buffer = np.frombuffer(raw, np.uint8)
    plain = walk(buffer)
    assert fields(plain)[:3] == stepped(raw)
    right = plain.starts.tolist()
    some = data.draw(st.lists(st.sampled_from(right), max_size=40) if right else st.just([]))
    wrong = data.draw(st.lists(st.integers(-10, len(raw) + 10), max_size=5))
    for guesses in (right, sorted(some), sorted(some + wrong), sorted(right + wrong)):
        assert fields(walk(buffer, guesses=np.array(guesses, np.int64))) == fields(plain)
