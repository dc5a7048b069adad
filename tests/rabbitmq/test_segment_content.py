"""What a segment file says, by the compiled loop and by the walk: the same of files in order, and of all others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compiled import loading
from storage_core.formats.rabbitmq.classic import segment
from storage_core.formats.rabbitmq.classic.index_records import PUBLISHED, SegmentPublishes, segment_publishes
from storage_core.rabbitmq.index.segment_reader import SegmentContent, decode

ENTRY_COUNT = 8


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Publishes and marks of a few entries: in order, or with some record twice, early, foreign, cut or changed."""
    parts = []
    in_order = draw(st.booleans())
    numbers = draw(st.permutations(range(ENTRY_COUNT))) if in_order else draw(st.lists(st.integers(0, ENTRY_COUNT)))
    for number in numbers:
        body = draw(st.binary(max_size=5))
        head = 0x8000 | draw(st.sampled_from([0, 0x4000])) | number
        fixed = head.to_bytes(2, "big") + bytes(16) + bytes(8) + (3).to_bytes(4, "big")
        parts.append(fixed + len(body).to_bytes(4, "big") + body)
        marked = number if in_order else draw(st.integers(0, ENTRY_COUNT))
        parts += [(0x4000 | marked).to_bytes(2, "big")] * draw(st.integers(0, 2 if in_order else 3))
    data = b"".join(parts)
    if draw(st.integers(0, 3)) == 0 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = draw(st.sampled_from([data[:at], data[:at] + bytes([data[at] ^ 0xC0]) + data[at + 1 :]]))
    return data


def said(data: bytes, setting: str) -> tuple[SegmentContent, bool]:
    """What is said of a segment, and whether it was the loop that said it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        return decode(data, "0.idx", ENTRY_COUNT), segment.content(data, ENTRY_COUNT) is not None


@settings(max_examples=400, deadline=None)
@given(segments())
def test_the_loop_says_what_the_walk_says(data: bytes) -> None:
    (walked, _), (read, by_loop) = said(data, "never"), said(data, "always")
    assert read.flags.tolist() == walked.flags.tolist()
    published = walked.flags & PUBLISHED != 0
    assert read.positions[published].tolist() == walked.positions[published].tolist()
    assert (read.damages, read.torn_at) == (walked.damages, walked.torn_at)
    is_blank = bool(data) and not any(data)
    assert by_loop == (not walked.damages and not is_blank)


def published(data: bytes, content: SegmentContent, setting: str) -> SegmentPublishes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        return segment_publishes(data, content.flags, content.positions)


@settings(max_examples=200, deadline=None)
@given(segments())
def test_the_loop_copies_the_publishes_that_numpy_copies(data: bytes) -> None:
    content, _ = said(data, "never")
    copied, taken = (published(data, content, setting) for setting in ("always", "never"))
    for name in SegmentPublishes.__dataclass_fields__:
        by_loop, by_numpy = getattr(copied, name), getattr(taken, name)
        assert (by_loop.dtype, by_loop.tobytes()) == (by_numpy.dtype, by_numpy.tobytes())
    assert [head.tobytes() for head in copied.heads] == [
        data[at : at + segment.PUBLISH.size] for at in copied.positions.tolist()
    ]
