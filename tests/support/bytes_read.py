"""Counts the bytes that a test reads from files."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.files import system
from storage_core.formats.layout import Bytes, Positions


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every read into a buffer from now on, in a list that grows."""
    reads: list[int] = []
    pread_into, pread_runs = system.pread_into, system.pread_runs

    def counted(descriptor: int, target: memoryview, position: int) -> int:
        reads.append(len(target))
        return pread_into(descriptor, target, position)

    def counted_each(
        descriptors: Positions, target: Bytes, starts: Positions, stops: Positions, positions: Positions
    ) -> tuple[int, int] | None:
        before = len(reads)
        ended = pread_runs(descriptors, target, starts, stops, positions)
        # Replaces the entries that the uncompiled loop adds through `pread_into`; the compiled one adds none.
        reads[before:] = np.subtract(stops, starts).tolist()
        return ended

    monkeypatch.setattr(system, "pread_into", counted)
    monkeypatch.setattr(system, "pread_runs", counted_each)
    return reads
