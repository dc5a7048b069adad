"""CRC-32 as the stores keep it: masked to 31 bits, 0 for an empty body (rocketmq.md 2.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.layout import Bytes, Positions
from storage_core.formats.spans import data_of, offsets_of, taken

MASK = 0x7FFFFFFF
PART = 1024
LARGE = 1024

FAST_LISTS = 26
"""The first version of pyarrow that makes lists of bytes objects in C++; before it, `to_numpy` is ten times as fast."""

_loops = CompiledLoops("storage_core.compiled.span_loops")
_held: list[Any] = [None]
_makes_lists = int(pa.__version__.partition(".")[0]) >= FAST_LISTS


def body_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """CRC-32 & 0x7FFFFFFF of each element. Shape (n,)."""
    offsets = offsets_of(bodies)
    size = int(offsets[-1] - offsets[0])
    if (loops := _loops.after(size)) is not None:
        return _masked(loops.crcs(data_of(bodies), offsets[:-1], offsets[1:]))
    if size >= LARGE * len(bodies):
        return _large_crcs(data_of(bodies), offsets[:-1], offsets[1:])
    return _small_crcs(bodies)


def span_crcs(buffer: Bytes, starts: Positions, sizes: Positions) -> npt.NDArray[np.int32]:
    """CRC-32 & 0x7FFFFFFF of the spans [start, start + size) of a buffer. Shape (n,)."""
    size = int(sizes.sum())
    if (loops := _loops.after(size)) is not None:
        return _masked(loops.crcs(buffer, starts, starts + sizes))
    if size >= LARGE * len(sizes):
        return _large_crcs(buffer, starts, starts + sizes)
    return _small_crcs(taken(buffer, starts, starts + sizes))


def _small_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """One Python call per message: the only per-message loop of a scan without compiled loops.

    Converting the column to bytes objects first costs half as much as slicing a memoryview, and ISA-L's CRC takes a
    third (100 B) to a seventh (10 KB) of the time of zlib's.
    """
    sums = np.empty(len(bodies), np.uint32)
    # One part at a time: its bytes objects stay in the cache and reuse memory that was just freed.
    for start in range(0, len(bodies), PART):
        part = bodies.slice(start, PART)
        # to_numpy loads pandas if it is installed, which takes a fifth of a second.
        objects = part.to_pylist() if _makes_lists else part.to_numpy(zero_copy_only=False)
        sums[start : start + PART] = np.fromiter(map(crc32, objects), np.uint32, len(objects))
        # Held until the next part is made, or Python would return their memory to the system and request it again.
        _held[0] = objects
    return _masked(sums)


def _large_crcs(data: Bytes, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """`_small_crcs` without a copy: from about 1 KB on, slicing costs less than copying, at 10 KB a quarter of it."""
    spans = map(data.data.__getitem__, map(slice, starts.tolist(), stops.tolist()))
    return _masked(np.fromiter(map(crc32, spans), np.uint32, len(starts)))


def _masked(sums: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    return (sums & MASK).view(np.int32)
