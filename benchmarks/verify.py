"""Question 8: how close does `verify` come to the speed of just reading the files?

From the disk, which is what a user waits for, and from memory, where only the checks cost time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import interleaved
from benchmarks.report import Finding, Section
from storage_core import open_store
from storage_core.formats.rocketmq.indexfile import Geometry

METHOD = (
    "`mqstore verify` as its library call, with every check (frames, CRC, log against queues against index), of one "
    "store with queues and index files; against reading every file of it in pieces of 1 MiB and keeping nothing, "
    "which is what `cat > /dev/null` does. From the disk: the kernel is told to drop the files' pages before each run. "
    "From memory: all pages are there."
)
MESSAGES, BODY_SIZE = 3_000_000, 1024
PIECE = 1 << 20


def verify(folder: Path, scale: float, rounds: int) -> Section:
    """Measures one store."""
    section = Section("Verify", METHOD)
    store = make_store(
        str(folder / "verify"), StoreShape(MESSAGES, BODY_SIZE, file_size=1 << 28, index=Geometry()).scaled(scale)
    )
    os.sync()
    size = sum(os.stat(path).st_blocks * 512 for path in _files(store))
    contenders = {"verify": lambda: _verify(store), "cat": lambda: _cat(store)}
    for title, between, gate in (("from the disk", lambda: _drop_pages(store), 0.60), ("from memory", None, None)):
        found = interleaved(contenders, rounds, warm_ups=1, between=between)
        section.foreign.append(found.foreign)
        speeds = " and ".join(f"{name} {size / found.wall_s(name) / 1e6:,.0f} MB/s" for name in contenders)
        note = f"{speeds}; verify takes {found.cpu_s('verify') / size * 1e9:.1f} CPU-s a GB"
        name = f"verify, 1 KB messages, {title}: of cat"
        section.add(Finding(name, found.faster("verify", "cat"), "%", gate, note=note))
    shutil.rmtree(store)
    return section


def _verify(store: str) -> None:
    with open_store(store) as opened:
        kinds = {finding.kind for finding in opened.verify()}
    if kinds != {"wrong checkpoint"}:
        raise AssertionError(f"the benchmark's store is damaged: {kinds}")


def _cat(store: str) -> None:
    buffer = bytearray(PIECE)
    for path in _files(store):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _drop_pages(store: str) -> None:
    for path in _files(store):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(store: str) -> Iterator[str]:
    for folder, _, names in os.walk(store):
        yield from (os.path.join(folder, name) for name in sorted(names))
