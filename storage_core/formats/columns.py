"""Arrow columns from numpy columns: times, hosts, hex ids, words, nulls; and masks the other way. Depends on no engine.

Each function is vectorised; work on single values is done once per distinct value.
"""

from __future__ import annotations

from functools import cache
from ipaddress import IPv6Address

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, as_numbers, text_array
from storage_core.formats.spans import FEW, data_of, joined, offsets_of

TIMESTAMP = pa.timestamp("us", "UTC")
YEAR_1_MS, YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000

HOST_SIZE = 8


@cache
def _hex_of_two(lower: bool) -> npt.NDArray[np.uint32]:
    """The four hex digits of each pair of bytes: half the lookups, and the table still fits into a core's cache."""
    digits = bytes(range(256)).hex().encode()
    of_one = np.frombuffer(digits if lower else digits.upper(), "<u2")
    found: npt.NDArray[np.uint32] = of_one[np.arange(1 << 16, dtype="<u2").view(np.uint8)].view("<u4")
    return found


def timestamps(ms: npt.NDArray[np.int64]) -> pa.TimestampArray:
    """Epoch milliseconds as timestamp[us, UTC]; null outside the years 1 to 9999.

    A producer or a damaged byte can store any 64-bit number; neither Spark nor Python can represent such a time.
    """
    inside = (ms >= YEAR_1_MS) & (ms < YEAR_10000_MS)
    if inside.all():
        return as_array(ms * 1000).view(TIMESTAMP)
    return masked(as_array(np.where(inside, ms, 0) * 1000).view(TIMESTAMP), inside)


def masked(values: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """The same values, null where `valid` is false (and where they already were)."""
    if valid.all():
        return values
    # PyArrow before 24 returns broken texts for a slice and one null: it takes the slice's offsets for the whole's.
    return pc.if_else(as_array(valid), values, pa.nulls(len(values), values.type))


def host_text(packed: pa.BinaryArray) -> pa.StringArray:
    """Packed hosts (4 or 16 address bytes, 4 bytes of port) as `ip:port`; IPv6 in brackets, RFC 5952."""
    if len(packed) <= FEW:
        return text_array(map(shown_host, packed.to_pylist()))
    offsets = offsets_of(packed)
    if packed.null_count or not (np.diff(offsets) == HOST_SIZE).all():
        hosts = packed.dictionary_encode()
        distinct = hosts.dictionary.to_pylist()
    else:
        data = data_of(packed)[offsets[0] : offsets[-1]]
        hosts = pa.Array.from_buffers(pa.uint64(), len(packed), [None, pa.py_buffer(data)]).dictionary_encode()
        distinct = [value.tobytes() for value in as_numbers(hosts.dictionary)]
    texts = text_array(map(shown_host, distinct))
    return pa.repeat(texts[0], len(packed)) if len(texts) == 1 else texts.take(hosts.indices)


def shown_host(value: bytes) -> str:
    """One packed host as `host_text` shows it."""
    port = int.from_bytes(value[-4:], "big", signed=True) if len(value) >= 4 else 0
    address = value[:-4]
    if len(address) == 16:
        return f"[{IPv6Address(address)}]:{port}"
    return f"{'.'.join(map(str, address))}:{port}"


def hex_text(packed: pa.BinaryArray, lower: bool = False) -> pa.StringArray:
    """Bytes as hex, upper-case or `lower`."""
    offsets = offsets_of(packed)
    data = data_of(packed)[offsets[0] : offsets[-1]]
    even = data if len(data) % 2 == 0 else np.append(data, np.uint8(0))
    digits = np.take(_hex_of_two(lower), even.view("<u2")).view(np.uint8)[: 2 * len(data)]
    bounds = (offsets - offsets[0]) * 2
    return pa.StringArray.from_buffers(len(packed), pa.py_buffer(bounds), pa.py_buffer(digits))


def followed_by(left: pa.BinaryArray, right: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Each element of `left` followed by the 8 big-endian bytes of `right`."""
    tail = np.arange(0, 8 * len(right) + 1, 8, dtype=np.int32)
    numbers = pa.BinaryArray.from_buffers(
        pa.binary(), len(right), [None, pa.py_buffer(tail), pa.py_buffer(right.astype(">i8"))]
    )
    return joined([left, numbers], len(right))


def words(texts: pa.StringArray) -> pa.ListArray:
    """Texts split at single spaces, empty pieces dropped; null stays null."""
    if not texts.null_count and not (data_of(texts) == 0x20).any() and (np.diff(offsets_of(texts)) > 0).all():
        return pa.ListArray.from_arrays(as_array(np.arange(len(texts) + 1, dtype=np.int32)), texts)
    split = pc.split_pattern(texts, " ")
    pieces = split.values
    lengths = np.diff(offsets_of(pieces))
    if (lengths > 0).all():
        return split
    kept = np.concatenate(([0], np.cumsum(lengths > 0))).astype(np.int32)
    offsets = kept[np.frombuffer(split.buffers()[1], np.int32, len(split) + 1, split.offset * 4)]
    mask = split.is_null() if split.null_count else None
    return pa.ListArray.from_arrays(as_array(offsets), pieces.filter(as_array(lengths > 0)), mask=mask)
