"""How many slots and entries an index file has: recorded by mqstore, or derived from the file's content.

No file of a broker states it. Source of the rules: rocketmq.md 1.3, 4.1; interface.md 11.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, IndexHeader
from storage_core.job import JobFolder, read_json

CHUNK_SIZE = 16 << 20
ENTRIES_CHECKED = 1000


def noted_geometry(root: str) -> Geometry | None:
    """The geometry that mqstore recorded when it wrote this store; None if there is none."""
    state = read_json(JobFolder(root).state)
    return Geometry(*state["index"]) if state is not None and state.get("index") else None


def found_geometry(descriptor: int, size: int, header: IndexHeader) -> Geometry | None:
    """The only geometry of a file of `size` bytes under which its last entry is where the header says, its slot points
    to it, and the newest entries are consistent; None if none or several fit.
    """
    right = [
        geometry
        for geometry in _candidates(descriptor, size, header)
        if _first_fits(descriptor, geometry, header) and _newest_fit(descriptor, geometry, header)
    ]
    return right[0] if len(right) == 1 else None


def _candidates(descriptor: int, size: int, header: IndexHeader) -> list[Geometry]:
    """Geometries under which the last entry holds the header's last physical offset."""
    # size = 40 + 4 slots + 20 entries: slots are fixed modulo 5, and there is room for all entries.
    room = (size - HEADER.size) // SLOT.size
    if (size - HEADER.size) % SLOT.size:
        return []
    most = room - 5 * header.entry_count
    slots = np.arange(room % 5 or 5, most + 1, 5, dtype=np.int64)
    expected = header.end_offset.to_bytes(8, "big")
    found: list[Geometry] = []
    positions = HEADER.size + SLOT.size * slots + ENTRY.size * header.count + 4
    step = CHUNK_SIZE // (SLOT.size * 5)
    for first in range(0, len(slots), step):
        part = positions[first : first + step]
        begin = int(part[0])
        data = np.frombuffer(system.pread(descriptor, int(part[-1]) + 8 - begin, begin), np.uint8)
        if len(data) < int(part[-1]) + 8 - begin:
            return []
        view: npt.NDArray[np.int64] = np.ndarray((len(part),), ">i8", data, strides=(SLOT.size * 5,))
        hits = np.flatnonzero(view == int.from_bytes(expected, "big"))
        found += [Geometry(s, (room - s) // 5) for s in slots[first + hits].tolist()]
    return found


def _first_fits(descriptor: int, geometry: Geometry, header: IndexHeader) -> bool:
    """Entry 0 is never used; entry 1 points to the header's first physical offset."""
    data = system.pread(descriptor, 2 * ENTRY.size, geometry.entries_position)
    first = int.from_bytes(data[ENTRY.size + 4 : ENTRY.size + 12], "big", signed=True)
    return not any(data[: ENTRY.size]) and first == header.begin_offset


def _newest_fit(descriptor: int, geometry: Geometry, header: IndexHeader) -> bool:
    """Whether `previous` of each of the newest entries is the next older of its slot, and slots hold their newest."""
    count = min(header.count, ENTRIES_CHECKED)
    first = header.count - count + 1
    position = int(geometry.entry_positions(np.array([first]))[0])
    data = system.pread(descriptor, count * ENTRY.size, position)
    if len(data) < count * ENTRY.size:
        return False
    entries = np.frombuffer(data, ENTRY.dtype)
    hashes, offsets = entries["key_hash"].astype(np.int32), entries["physical_offset"].astype(np.int64)
    inside = (offsets >= header.begin_offset) & (offsets <= header.end_offset)
    if (hashes < 0).any() or not inside.all() or (np.diff(offsets) < 0).any():
        return False
    slot = hashes.astype(np.int64) % geometry.slots
    order = np.argsort(slot, kind="stable")
    numbers, previous = order + first, entries["previous"][order].astype(np.int64)
    same = np.diff(slot[order]) == 0
    if (previous[1:][same] != numbers[:-1][same]).any() or (previous[np.append(True, ~same)] >= first).any():
        return False
    newest = order[np.append(~same, True)]
    positions = geometry.slot_positions(hashes[newest]).tolist()
    slots = system.pread_each([(descriptor, SLOT.size, position) for position in positions])
    held = [int.from_bytes(data, "big", signed=True) for data in slots]
    return bool((np.array(held) == newest + first).all())
