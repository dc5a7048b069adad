"""Bytes from a store that knows no holes, written with holes: blocks of zeros are left out."""

from __future__ import annotations

from storage_core.files import system

BLOCK_SIZE = 64 << 10
_ZEROS = bytes(BLOCK_SIZE)


def write_sparse(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Writes bytes into a file that has its length already, and zeros there; runs of blocks by one call each."""
    view, begin = memoryview(data), None
    for start in range(0, len(view), BLOCK_SIZE):
        block = view[start : start + BLOCK_SIZE]
        if block == _ZEROS[: len(block)]:
            if begin is not None:
                system.pwrite(descriptor, view[begin:start], position + begin)
            begin = None
        elif begin is None:
            begin = start
    if begin is not None:
        system.pwrite(descriptor, view[begin:], position + begin)
