"""The records of user chunks: simple entries and sub-batches, found as spans of one buffer.

Source: docs/format/rabbitmq-streams.md 4. `sections` parses the records.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.formats.layout import Bytes, Mask, Positions, values_at
from storage_core.formats.rabbitmq.stream_queues import compression

SUB_BATCH = 0x8000_0000
_SUB_BATCH_HEAD = struct.Struct(">BHII")
_UNPACKED_AT = struct.calcsize(">BH")
_LENGTH = struct.Struct(">I")
MOST_UNPACKED = 16 << 20
"""Bytes of sub-batches that are unpacked at once, unless those of a single chunk are more."""
_FEWEST_IN_STEP = 32
"""With at least this many chunks, their next entries are read at once; with fewer, one chunk after another."""
_SHORT_RUN, _HOPS = 8, 256


@dataclass(frozen=True)
class Records:
    """Records of n chunks in order. Arrays of shape (m,): chunk number, offset from the chunk id, span in `buffer`.

    `positions`: where the record's entry begins in the input buffer. `reasons` states what is wrong with a chunk, by
    its number; such a chunk has no records.
    """

    buffer: Bytes
    chunks: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    positions: Positions
    starts: Positions
    stops: Positions
    reasons: dict[int, str]


class TooMuchToUnpackError(Exception):
    """Chunks whose sub-batches are too large to be unpacked at once; `sizes` are their unpacked bytes by chunk."""

    def __init__(self, sizes: Positions) -> None:
        super().__init__(f"{int(sizes.sum())} bytes of sub-batches")
        self.sizes = sizes


@dataclass(frozen=True)
class _Entries:
    """Entries of regions, in the order (region, entry): region, span of the data (of a sub-batch, with its head),
    whether it is a sub-batch. `ok`: which regions are filled exactly by their entries.
    """

    regions: npt.NDArray[np.int64]
    starts: Positions
    stops: Positions
    batched: Mask
    ok: Mask


def locate(
    buffer: Bytes, starts: Positions, stops: Positions, entries: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64], may_lack: Mask | bool = False,
) -> Records:  # fmt: skip
    """The records of chunks whose data are [start, stop) of `buffer`, with the stated number of records. Raises only
    TooMuchToUnpackError, if several chunks have sub-batches that unpack to more than MOST_UNPACKED bytes.

    Sub-batches are unpacked; their decompressed data follow the original bytes in the returned buffer. A wrong number
    of entries is not damage if entries fill the chunk, nor are fewer records than stated where one `may_lack` some.
    """
    found = _entries(buffer, starts, stops, entries)
    if not found.ok.all():
        counts = entries.copy()
        for chunk in np.flatnonzero(~found.ok).tolist():
            counts[chunk] = len(_hop(buffer, int(starts[chunk]), int(stops[chunk]), len(buffer))[0])
        found = _entries(buffer, starts, stops, counts)
    reasons = {int(chunk): "its entries do not fill the chunk" for chunk in np.flatnonzero(~found.ok)}
    if found.batched.any():
        sizes = _unpacked_sizes(buffer, found, len(starts))
        if len(starts) > 1 and sizes.sum() > MOST_UNPACKED:
            raise TooMuchToUnpackError(sizes)
        return _with_batches(buffer, found, records, may_lack, reasons)
    _check_counts(np.bincount(found.regions, minlength=len(records)), records, may_lack, reasons)
    return _ordered(buffer, found.regions, found.starts - 4, found.starts, found.stops, reasons)


def _unpacked_sizes(buffer: Bytes, found: _Entries, chunk_count: int) -> Positions:
    """The bytes of each chunk's sub-batches once decompressed, as their heads state them. Shape (chunk_count,)."""
    batches = np.flatnonzero(found.batched)
    stated = values_at(buffer, ">u4", found.starts[batches] + _UNPACKED_AT).astype(np.int64)
    sizes = np.zeros(chunk_count, np.int64)
    np.add.at(sizes, found.regions[batches], stated)
    return sizes


def _check_counts(
    counts: npt.NDArray[np.int64], records: npt.NDArray[np.int64], may_lack: Mask | bool, reasons: dict[int, str]
) -> None:
    """Adds the chunks whose number of records differs from the stated one."""
    wrong = (counts > records) | ((counts < records) & ~np.asarray(may_lack))
    for chunk in np.flatnonzero(wrong).tolist():
        reasons.setdefault(chunk, "it holds another number of records than lie before the next one")


def _ordered(
    buffer: Bytes, chunks: npt.NDArray[np.int64], positions: Positions, starts: Positions, stops: Positions,
    reasons: dict[int, str],
) -> Records:  # fmt: skip
    if reasons:
        good = ~np.isin(chunks, np.array(sorted(reasons), np.int64))
        chunks, positions, starts, stops = (each[good] for each in (chunks, positions, starts, stops))
    return Records(buffer, chunks, numbers_within(chunks), positions, starts, stops, reasons)


def numbers_within(chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2 … in each run of equal, ascending `chunks`."""
    first = np.ones(len(chunks), bool)
    first[1:] = chunks[1:] != chunks[:-1]
    begins = np.flatnonzero(first)
    return np.arange(len(chunks)) - begins[np.cumsum(first) - 1] if len(chunks) else np.empty(0, np.int64)


def _with_batches(
    buffer: Bytes, found: _Entries, records: npt.NDArray[np.int64], may_lack: Mask | bool, reasons: dict[int, str]
) -> Records:
    """Simple entries and the records of sub-batches, in the order of the entries."""
    batches = np.flatnonzero(found.batched)
    bodies, counts, size = [buffer], [], len(buffer)
    unpacked = np.zeros(len(records), np.int64)
    begins, ends = np.zeros((2, len(batches)), np.int64)
    for row, entry in enumerate(batches.tolist()):
        start, stop = int(found.starts[entry]), int(found.stops[entry])
        kind, count, plain, _ = _SUB_BATCH_HEAD.unpack_from(buffer.data, start)
        counts.append(count)
        begins[row], ends[row] = start + _SUB_BATCH_HEAD.size, stop
        kind = kind >> 4 & 7
        if not kind:
            continue
        try:
            unpacked[found.regions[entry]] += plain
            if unpacked[found.regions[entry]] > compression.MOST_BYTES:
                raise FormatError(0, f"the chunk unpacks to more than the {compression.MOST_BYTES} bytes that are read")
            body = compression.decompress(kind, buffer[begins[row] : stop].tobytes(), plain)
        except FormatError as error:
            reasons.setdefault(int(found.regions[entry]), f"a sub-batch of it: {error.reason}")
            begins[row] = ends[row] = 0
            continue
        begins[row], ends[row] = size, size + len(body)
        bodies.append(np.frombuffer(body, np.uint8))
        size += len(body)
    joined = np.concatenate(bodies) if len(bodies) > 1 else buffer
    inner = _entries(joined, begins, ends, np.array(counts, np.int64))
    bad = ~inner.ok
    if inner.batched.any():
        bad[inner.regions[inner.batched]] = True
    for entry in batches[bad].tolist():
        reasons.setdefault(int(found.regions[entry]), "the records of a sub-batch of it do not fill it")
    simple = np.flatnonzero(~found.batched)
    owners = batches[inner.regions]
    order = np.argsort(np.concatenate([simple, owners]), kind="stable")
    chunks = found.regions[np.concatenate([simple, owners])][order]
    positions = np.concatenate([found.starts[simple] - 4, found.starts[owners]])[order]
    starts = np.concatenate([found.starts[simple], inner.starts])[order]
    stops = np.concatenate([found.stops[simple], inner.stops])[order]
    _check_counts(np.bincount(chunks, minlength=len(records)), records, may_lack, reasons)
    return _ordered(joined, chunks, positions, starts, stops, reasons)


def _entries(buffer: Bytes, starts: Positions, stops: Positions, counts: npt.NDArray[np.int64]) -> _Entries:
    """The entries of regions of `buffer`: while many are left, the next entry of all of them is read at once."""
    ok: Mask = (starts >= 0) & (starts <= stops) & (stops <= len(buffer))
    left = np.where(ok, counts, 0)
    position = starts.astype(np.int64)
    rows = np.flatnonzero(left > 0)
    steps: list[tuple[npt.NDArray[np.int64], ...]] = []
    # A step costs as much as hopping through several entries: it pays off with more regions than entries per region.
    while len(rows) >= max(_FEWEST_IN_STEP, int(left[rows].mean()) if len(rows) else 0):
        step = _step(buffer, position[rows], stops[rows])
        ok[rows[~step[3]]] = False
        good = step[3]
        rows = rows[good]
        steps.append((rows, step[0][good], step[1][good], step[2][good]))
        position[rows] = step[1][good]
        left[rows] -= 1
        rows = rows[left[rows] > 0]
    for row in rows.tolist():
        hopped = _hop(buffer, int(position[row]), int(stops[row]), int(left[row]))
        count = len(hopped[0])
        ok[row] = count == left[row]
        if count:
            steps.append((np.full(count, row, np.int64), *hopped))
            position[row] = hopped[1][-1]
    ok &= position == stops
    if not steps:
        nothing = np.empty(0, np.int64)
        return _Entries(nothing, nothing, nothing, np.empty(0, bool), ok)
    regions, begins, ends, batched = (np.concatenate([step[i] for step in steps]) for i in range(4))
    if len(steps) > 1:
        order = np.argsort(regions, kind="stable")
        regions, begins, ends, batched = (each[order] for each in (regions, begins, ends, batched))
    return _Entries(regions, begins, ends, batched.astype(bool), ok)


def _step(
    buffer: Bytes, position: Positions, stops: Positions
) -> tuple[Positions, Positions, npt.NDArray[np.int64], Mask]:
    """The entries at these positions: start of the data (for a sub-batch, of its head), end, kind, and whether the
    entry ends before its stop.
    """
    heads = values_at(buffer, ">u4", position).astype(np.int64)
    batched = heads >= SUB_BATCH
    start = np.where(batched, position, position + _LENGTH.size)
    sizes = heads
    if batched.any():
        lengths = values_at(buffer, ">u4", position + _SUB_BATCH_HEAD.size - _LENGTH.size).astype(np.int64)
        sizes = np.where(batched, lengths + _SUB_BATCH_HEAD.size, heads)
    stop = start + sizes
    least = np.where(batched, _SUB_BATCH_HEAD.size, _LENGTH.size)
    good: Mask = (stop <= stops) & (position + least <= stops)
    return start, stop, batched.astype(np.int64), good


def _hop(buffer: Bytes, position: int, stop: int, count: int) -> tuple[Positions, Positions, npt.NDArray[np.int64]]:
    """Up to `count` entries of one region: runs of entries of one length at once, others one head after another."""
    parts: list[tuple[Positions, Positions, npt.NDArray[np.int64]]] = []
    found = 0
    while found < count and position + _LENGTH.size <= stop:
        size = _LENGTH.unpack_from(buffer.data, position)[0]
        run = 0 if size >= SUB_BATCH else _run(buffer, position, stop, size, count - found)
        if run >= _SHORT_RUN:
            begins = position + _LENGTH.size + np.arange(run) * (size + _LENGTH.size)
            part = (begins, begins + size, np.zeros(run, np.int64))
        else:
            part = _hop_by_heads(buffer, position, stop, min(_HOPS, count - found))
        if not len(part[0]):
            break
        parts.append(part)
        found += len(part[0])
        position = int(part[1][-1])
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    begins, ends, batched = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return begins, ends, batched


def _run(buffer: Bytes, position: int, stop: int, size: int, count: int) -> int:
    """How many entries of `size` bytes follow one another from `position` on."""
    stride = size + _LENGTH.size
    most = min(count, (stop - position) // stride)
    if most < _SHORT_RUN:
        return 0
    heads = np.ndarray((most,), ">u4", buffer, position, (stride,))
    other = heads != size
    return int(np.argmax(other)) if other.any() else most


def _hop_by_heads(
    buffer: Bytes, position: int, stop: int, count: int
) -> tuple[Positions, Positions, npt.NDArray[np.int64]]:
    """Up to `count` entries, one head after another: only an entry's head gives the position of the next entry."""
    unpack, view = _LENGTH.unpack_from, buffer.data
    spans: list[tuple[int, int, bool]] = []
    add = spans.append
    for _ in range(count):
        if position + _LENGTH.size > stop:
            break
        size = unpack(view, position)[0]
        batched = size >= SUB_BATCH
        start = position if batched else position + _LENGTH.size
        if batched and position + _SUB_BATCH_HEAD.size > stop:
            break
        if batched:
            size = unpack(view, position + _SUB_BATCH_HEAD.size - _LENGTH.size)[0] + _SUB_BATCH_HEAD.size
        position = start + size
        if position > stop:
            break
        add((start, position, batched))
    table = np.array(spans, np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()
