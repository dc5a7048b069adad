"""The walk over a DLedger log: both implementations give the same as single steps, whatever the bytes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.layout import Bytes
from storage_core.formats.rocketmq.ledger import (
    LEDGER_HEADER,
    committed_number,
    headers_at,
    right_headers,
    walk_ledger,
)
from storage_core.formats.rocketmq.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_SIZE
from storage_core.formats.rocketmq.record_walk import Stop

pytestmark = pytest.mark.usefixtures("either_loops")

MAGICS = (MAGIC_V1, MAGIC_V2)
SIZES = st.sampled_from([MIN_SIZE, MIN_SIZE + 1, 120, 300])
HEADS = st.tuples(SIZES, st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]), st.booleans())
HALF = (1).to_bytes(4, "big") + (1 << 20).to_bytes(4, "big") + bytes(40)
TAILS = st.sampled_from([
    b"", b"\0" * 40, b"\0" * 200, b"\xff" * 4 + b"\0\0\0\x20" + bytes(24), b"\0\0\0\x05junk?" * 9,
    b"\0\0\0\x10" + MAGIC_BLANK.to_bytes(4, "big") + bytes(60), HALF, HALF[:30],
    HALF + (1 << 20).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big"), HALF + bytes(90),
    (200).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + bytes(20),
])  # fmt: skip


def ledger(heads: list[tuple[int, int, bool]]) -> bytes:
    """Records with and without headers."""
    data, number = b"", 0
    for size, magic, with_header in heads:
        if with_header:
            header = np.zeros(1, LEDGER_HEADER.dtype)
            header["magic"], header["size"], header["number"] = 1, size + LEDGER_HEADER.size, number
            header["address"], header["body_size"] = len(data), size
            data, number = data + header.tobytes(), number + 1
        data += size.to_bytes(4, "big") + magic.to_bytes(4, "big") + bytes(size - 8)
    return data


def as_buffer(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def stepped(data: bytes) -> tuple[list[int], list[int], int]:
    """The walk, one record after another."""

    def number(low: int) -> int:
        return int.from_bytes(data[low : low + 4], "big")

    at, starts, sizes = 0, [], []
    while at + 8 <= len(data):
        start = at if number(at + 4) in MAGICS else at + LEDGER_HEADER.size
        size = number(start)
        if start + 8 > len(data) or number(start + 4) not in MAGICS or not MIN_SIZE <= size <= len(data) - start:
            break
        starts.append(start)
        sizes.append(size)
        at = start + size
    return starts, sizes, at


@given(st.lists(HEADS, max_size=30), TAILS, st.integers(0, 400))
def test_every_record_is_stepped_on(heads: list[tuple[int, int, bool]], tail: bytes, cut: int) -> None:
    whole = ledger(heads) + tail
    for data in (whole, whole[: max(0, len(whole) - cut)]):
        found = walk_ledger(as_buffer(data))
        assert (found.starts.tolist(), found.sizes.tolist(), found.stop) == stepped(data)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", Stop.TORN), (b"\0" * 60, Stop.END), (b"\xff" * 4 + b"\0\0\0\x08", Stop.BLANK), (HALF[:20], Stop.TORN),
        (HALF + (500).to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big"), Stop.TORN), (HALF + bytes(60), Stop.CORRUPT),
        (HALF + (5).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big"), Stop.CORRUPT),
        ((64).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(60), Stop.BLANK),
    ],
)  # fmt: skip
def test_why_a_walk_stops(tail: bytes, reason: Stop) -> None:
    data = ledger([(120, MAGIC_V1, True)])
    found = walk_ledger(as_buffer(data + tail))
    assert (found.starts.tolist(), found.stop, found.reason) == ([LEDGER_HEADER.size], len(data), reason)


def test_a_header_says_where_it_is() -> None:
    data = ledger([(120, MAGIC_V1, True), (300, MAGIC_V1, True)])
    starts = np.array([0, LEDGER_HEADER.size + 120])
    headers = headers_at(as_buffer(data), starts)
    assert right_headers(headers, starts).tolist() == [True, True]
    assert right_headers(headers, starts + 1).tolist() == [False, False]
    for name in ("magic", "size", "body_size"):
        wrong = headers.copy()
        wrong[name][1] += 1
        assert right_headers(wrong, starts).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "number"),
    [("committedIndex=12\nendIndex=14\n", 12), ("endIndex=14\n", -1), ("", -1), ("committedIndex=\n", -1),
     ("committedIndex=-1", -1), (" committedIndex = 7 ", 7), ("committedIndex=x", -1)],
)  # fmt: skip
def test_what_is_committed(text: str, number: int) -> None:
    assert committed_number(text) == number
