"""Finds short byte strings in a large buffer, at a speed that hardly depends on its content.

The C library's `memmem` examines only a few bytes per needle length and runs five times as fast as comparing words
(measured). With many hits, a call for each would cost more than it saves.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Positions

SHORTEST = 4
MOST_HITS = 64
"""Hits in one buffer beyond which words are compared instead."""
_WORD = np.dtype("<u4")

_memmem = getattr(ctypes.CDLL(None), "memmem", None)
if _memmem is not None:
    _memmem.restype = ctypes.c_void_p
    _memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


def find_all(buffer: Bytes, needle: bytes) -> Positions:
    """Every position at which `needle`, of at least 4 bytes, begins; ascending."""
    few = _few(buffer, needle)
    return _by_words(buffer, needle) if few is None else np.array(few, np.int64)


def _few(buffer: Bytes, needle: bytes) -> list[int] | None:
    """The positions found one by one with `memmem`; None if there are too many, or `memmem` cannot be used."""
    if _memmem is None or not buffer.flags.c_contiguous:
        return None
    found: list[int] = []
    start, size = buffer.ctypes.data, len(buffer)
    at = 0
    while (hit := _memmem(start + at, size - at, needle, len(needle))) is not None:
        if len(found) == MOST_HITS:
            return None
        found.append(hit - start)
        at = found[-1] + 1
    return found


def _by_words(buffer: Bytes, needle: bytes) -> Positions:
    tail = int.from_bytes(needle[-SHORTEST:], "little")
    raw = buffer.data
    found = []
    for shift in range(SHORTEST):
        count = (len(buffer) - shift) // SHORTEST
        if count > 0:
            hit = np.frombuffer(raw, _WORD, count, shift) == np.uint32(tail)
            # Most windows hold no needle, and `any` is faster than building an empty list of positions.
            if hit.any():
                found.append(np.flatnonzero(hit) * SHORTEST + shift)
    at = np.sort(np.concatenate(found), kind="stable") if found else np.empty(0, np.int64)
    at = at.astype(np.int64) - (len(needle) - SHORTEST)
    at = at[at >= 0]
    for index, byte in enumerate(needle[:-SHORTEST]):
        if not len(at):
            break
        at = at[buffer[at + index] == byte]
    return at


def spans_with(buffer: Bytes, starts: Positions, stops: Positions, needles: list[bytes]) -> npt.NDArray[np.bool_]:
    """Which spans [start, stop) of the buffer contain at least one of `needles`. Shape (n,)."""
    kept = np.zeros(len(starts), bool)
    for needle in needles:
        at = find_all(buffer, needle)
        if len(at):
            kept |= np.searchsorted(at, starts) < np.searchsorted(at, stops - len(needle), "right")
    return kept
