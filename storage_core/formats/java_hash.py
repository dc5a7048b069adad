"""Java's `String.hashCode`: of one text, and of a whole column.

What a hash is used for (index slots, tags codes, queues by key) is up to the callers. Source of the rule:
rocketmq.md, conventions: `h = 31 * h + unit` over UTF-16 code units, 32 bits, signed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.radix_sort import stable_order
from storage_core.formats.spans import data_of, offsets_of

GUESSED_SIZE = 20
_loops = CompiledLoops("storage_core.compiled.span_loops")
_MASK = 0xFFFFFFFF
_NOT_ASCII, _CONTINUATION_MASK, _CONTINUATION, _FOUR_BYTES = 0x80, 0xC0, 0x80, 0xF0


def java_hash(text: str) -> int:
    """The hash of one text, signed. Lone surrogates are hashed as code units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[0::2], units[1::2], strict=True):
        value = (31 * value + ((high << 8) | low)) & _MASK
    return value - (1 << 32) if value >> 31 else value


def java_hashes(texts: pa.StringArray, before: npt.NDArray[np.int32] | int = 0) -> npt.NDArray[np.int32]:
    """The hash of each text, shape (n,); a null hashes like the empty text.

    `before`: the hashes (shape (n,) or one for all) of a prefix of each text; the result is then the hash of prefix and
    text together. The texts must be valid UTF-8. The numpy twin of the compiled loop iterates over character positions,
    not rows.
    """
    if (loops := _loops.after(len(texts) * GUESSED_SIZE)) is not None:
        hashed_before = np.ascontiguousarray(np.broadcast_to(np.asarray(before, np.int32), len(texts)))
        hashes: npt.NDArray[np.int32] | None = loops.hashes_of_ascii(data_of(texts), offsets_of(texts), hashed_before)
        if hashes is not None:
            return hashes
    units, starts, stops = _code_units(texts)
    lengths = stops - starts
    if len(lengths) and (lengths == lengths[0]).all():
        return _even_hashes(units, starts, int(lengths[0]), before)
    order = stable_order(lengths)[::-1]
    starts, lengths = starts[order], lengths[order]
    values = np.broadcast_to(np.asarray(before, np.int32).view(np.uint32), len(order))[order].copy()
    # In order of descending length, the texts that reach a position come first.
    reach = np.searchsorted(-lengths, -np.arange(int(lengths.max(initial=0))), "left")
    for position, count in enumerate(reach.tolist()):
        values[:count] *= np.uint32(31)
        values[:count] += units[starts[:count] + position]
    out = np.empty(len(order), np.int32)
    out[order] = values.view(np.int32)
    return out


def _even_hashes(
    units: npt.NDArray[np.unsignedinteger],
    starts: npt.NDArray[np.int64],
    length: int,
    before: npt.NDArray[np.int32] | int,
) -> npt.NDArray[np.int32]:
    """The hashes of texts that have the same number of code units."""
    values = np.broadcast_to(np.asarray(before, np.int32).view(np.uint32), len(starts)).copy()
    columns = units[int(starts[0]) :][: len(starts) * length].reshape(len(starts), length)
    for position in range(length):
        values *= np.uint32(31)
        values += columns[:, position]
    return values.view(np.int32)


def _code_units(
    texts: pa.StringArray,
) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """UTF-16 code units of all texts in one array, and where each text begins and ends in it."""
    offsets = offsets_of(texts).astype(np.int64)
    data = data_of(texts)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if not (data & _NOT_ASCII).any():
        return data, offsets[:-1], offsets[1:]
    units = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-16-le"), "<u2")
    # A code point begins at each byte that is not a continuation byte; one of four bytes takes two units.
    before = np.zeros(len(data) + 1, np.int64)
    np.cumsum(((data & _CONTINUATION_MASK) != _CONTINUATION) + (data >= _FOUR_BYTES).astype(np.int64), out=before[1:])
    places = before[offsets]
    return units, places[:-1], places[1:]
