"""How many bytes of files a test reads."""

from __future__ import annotations

import pytest

from storage_core.files import system


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every read into a buffer from now on, in a list that grows."""
    reads: list[int] = []
    pread_into = system.pread_into

    def counted(descriptor: int, target: memoryview, position: int) -> int:
        reads.append(len(target))
        return pread_into(descriptor, target, position)

    monkeypatch.setattr(system, "pread_into", counted)
    return reads
