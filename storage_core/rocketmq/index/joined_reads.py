"""Prefetches what a lookup needs first of all index files, in two rounds of requests; does nothing on a local disk.

No result depends on it: what was read here is in memory when it is read again, one by one. Source of the rules:
rocketmq.md 4.6, docs/object-storage.md "Cost".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, decode_header
from storage_core.rocketmq.disk.record_reader import RECORD_AHEAD

Span = tuple[int, int, int]
Hashes = npt.NDArray[np.int32]

FILES_AT_ONCE = 64
MOST_SLOTS = 512
"""For more hashes times files, slots are not read ahead: they would be evicted from memory before they are used."""


def read_headers(paths: Sequence[str], noted: Geometry | None, hashes: Hashes) -> None:
    """Reads the headers and the slots of the hashes."""
    if not paths or system.is_local(paths[0]):
        return
    with OpenFiles() as files:
        opened = list(_opened(paths, files, noted))
    spans = [(descriptor, HEADER.size, 0) for descriptor, _ in opened]
    spans += [span for descriptor, geometry in opened for span in _slots(descriptor, geometry, hashes, len(paths))]
    system.pread_each(spans)


def read_ends(
    paths: Sequence[str],
    log: FileChain,
    log_span: tuple[int, int],
    files: OpenFiles,
    known: Geometry | None,
    hashes: Hashes,
) -> None:
    """Reads what proves the files (their first and last entries and the records of these) and the newest entries of the
    slots; also headers and slots, if they are not in memory yet.
    """
    opened = list(_opened(paths, files, known))
    heads = system.pread_each([(descriptor, HEADER.size, 0) for descriptor, _ in opened])
    wanted: list[Span] = []
    slots: list[Span] = []
    bases: list[int] = []
    for (descriptor, geometry), head in zip(opened, heads, strict=True):
        header = decode_header(head) if len(head) == HEADER.size else None
        if header is None or header.count < 1 or header.end_offset < log_span[0]:
            continue
        if geometry is not None:
            positions = geometry.entry_positions(np.array([1, header.count])).tolist()
            wanted += [(descriptor, ENTRY.size, position) for position in positions]
            own = list(_slots(descriptor, geometry, hashes, len(paths)))
            slots += own
            bases += [geometry.entries_position] * len(own)
        for physical_offset in (header.begin_offset, header.end_offset):
            file = log.file_at(physical_offset) if log_span[0] <= physical_offset < log_span[1] else None
            if file is not None:
                wanted.append((files.descriptor(file.path), RECORD_AHEAD, physical_offset - file.base_offset))
    for (descriptor, _, _), base, slot in zip(slots, bases, system.pread_each(slots), strict=True):
        number = int.from_bytes(slot, "big", signed=True)
        if number > 0:
            wanted.append((descriptor, ENTRY.size, base + ENTRY.size * number))
    system.pread_each(wanted)


def _opened(paths: Sequence[str], files: OpenFiles, known: Geometry | None) -> Iterator[tuple[int, Geometry | None]]:
    """The descriptor of each file that exists, and its geometry if its length determines it."""
    for path in paths:
        with suppress(FileNotFoundError):
            size = system.stat(path).size
            fitting = (geometry for geometry in (known, Geometry()) if geometry and geometry.file_size == size)
            yield files.descriptor(path), next(fitting, None)


def _slots(descriptor: int, geometry: Geometry | None, hashes: Hashes, file_count: int) -> Iterator[Span]:
    if geometry is not None and len(hashes) * file_count <= MOST_SLOTS:
        for position in np.unique(geometry.slot_positions(hashes)).tolist():
            yield descriptor, SLOT.size, position
