"""The content of a segment file, by the compiled loop and by the walk: the same for files in order and all others."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compiled import loading
from storage_core.formats.rabbitmq.classic import segment
from storage_core.formats.rabbitmq.classic.index_records import (
    ACKED,
    PUBLISHED,
    PublishRows,
    publishes_into,
)
from storage_core.rabbitmq.index.entries import new_entries
from storage_core.rabbitmq.index.segment_reader import SegmentContent, decode

ENTRY_COUNT, FIRST = 8, 1 << 40
COLUMNS = {"sequence_id": "sequence_ids", "position": "positions", "expiry": "expiries", "length": "lengths",
           "size": "sizes", "flags": "flags"}  # fmt: skip


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Publishes and marks of a few entries: in order, or with some record repeated, early, foreign, cut or changed."""
    parts = []
    ids = [bytes([n]) * 16 for n in range(255)]
    in_order = draw(st.booleans())
    numbers = draw(st.permutations(range(ENTRY_COUNT))) if in_order else draw(st.lists(st.integers(0, ENTRY_COUNT)))
    for number in numbers:
        body = draw(st.binary(max_size=5))
        head = 0x8000 | draw(st.sampled_from([0, 0x4000])) | number
        fixed = head.to_bytes(2, "big") + ids.pop(0) + (number << 60).to_bytes(8, "big") + (3).to_bytes(4, "big")
        parts.append(fixed + len(body).to_bytes(4, "big") + body)
        marked = number if in_order else draw(st.integers(0, ENTRY_COUNT))
        parts += [(0x4000 | marked).to_bytes(2, "big")] * draw(st.integers(0, 2 if in_order else 3))
    data = b"".join(parts)
    if draw(st.integers(0, 3)) == 0 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = draw(st.sampled_from([data[:at], data[:at] + bytes([data[at] ^ 0xC0]) + data[at + 1 :]]))
    return data


def parsed(data: bytes, setting: str) -> tuple[SegmentContent, bool]:
    """The content of a segment, and whether the loop found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        return decode(data, "0.idx", ENTRY_COUNT), segment.content(data, ENTRY_COUNT) is not None


@settings(max_examples=400, deadline=None)
@given(segments())
def test_the_loop_says_what_the_walk_says(data: bytes) -> None:
    (walked, _), (read, by_loop) = parsed(data, "never"), parsed(data, "always")
    assert read.flags.tolist() == walked.flags.tolist()
    published = walked.flags & PUBLISHED != 0
    assert read.positions[published].tolist() == walked.positions[published].tolist()
    assert (read.damages, read.torn_at) == (walked.damages, walked.torn_at)
    is_blank = bool(data) and not any(data)
    assert by_loop == (not walked.damages and not is_blank)


def decoded(
    data: bytes, content: SegmentContent, with_ids: bool, setting: str, more: int = 0
) -> tuple[PublishRows, list[int]]:
    """The publishes of a segment, added to flags that are already set, and the acknowledged sequence ids."""
    count = int(np.count_nonzero(content.flags & PUBLISHED)) + more
    entries = new_entries(count)
    entries["flags"] = 0x40
    columns = {column: entries[field] for field, column in COLUMNS.items()}
    target = PublishRows(
        **columns, ids=np.zeros(count, "V16"), stored=np.zeros(count, bool), persistent=0x20, with_ids=with_ids
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(setting))
        acked = publishes_into(data, content.flags, content.positions, FIRST, target)
    return target, acked.tolist()


@settings(max_examples=300, deadline=None)
@given(segments(), st.booleans())
def test_publishes_become_what_their_records_say(data: bytes, with_ids: bool) -> None:
    content, _ = parsed(data, "never")
    (looped, acked), (taken, acked_by_numpy) = (decoded(data, content, with_ids, s) for s in ("always", "never"))
    assert acked == acked_by_numpy == [FIRST + n for n in np.flatnonzero(content.flags & ACKED).tolist()]
    for name in (*COLUMNS.values(), "ids", "stored"):
        assert getattr(looped, name).tobytes() == getattr(taken, name).tobytes()
    relatives = np.flatnonzero(content.flags & PUBLISHED).tolist()
    assert looped.count == len(relatives)
    for row, (relative, is_stored, own_id) in enumerate(zip(relatives, looped.stored, looped.ids, strict=True)):
        record = data[(at := int(content.positions[relative])) :]
        head, record_id, expiry, size, embedded_size = struct.unpack_from(">H16sQII", record)
        flags = 0x40 | (0x20 if head & segment.PERSISTENT_BIT else 0)
        expected = {"sequence_id": FIRST + relative, "position": at, "expiry": expiry, "size": size, "flags": flags,
                      "length": segment.PUBLISH.size + embedded_size}  # fmt: skip
        assert {name: int(getattr(looped, column)[row]) for name, column in COLUMNS.items()} == expected
        assert bool(is_stored) == (embedded_size == 0)
        assert own_id.tobytes() == (record_id if with_ids or is_stored else bytes(16))


@pytest.mark.parametrize("setting", ["always", "never"])
@pytest.mark.parametrize("more", [-1, 1])
def test_rows_are_neither_left_over_nor_missing(setting: str, more: int) -> None:
    record = struct.pack(">H16sQII", segment.PUBLISH_BIT, bytes(16), 0, 0, 0)
    content, _ = parsed(record, "never")
    with pytest.raises(ValueError, match="row for each"):
        decoded(record, content, False, setting, more)


@pytest.mark.parametrize("setting", ["always", "never"])
def test_columns_of_other_lengths_are_refused(setting: str) -> None:
    record = struct.pack(">H16sQII", segment.PUBLISH_BIT, bytes(16), 0, 0, 0)
    content, _ = parsed(record, "never")
    target, _ = decoded(record, content, False, setting)
    with pytest.raises(ValueError, match="different lengths"):
        publishes_into(record, content.flags, content.positions, FIRST, replace(target, ids=np.zeros(2, "V16")))
