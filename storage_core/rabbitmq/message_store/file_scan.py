"""The records of a message file, found by reading it, as a node does when it does not trust its tables.

Nodes up to 3.12 walk from record to record and end where none can begin. Nodes that write containers (3.13 and later)
compact a file in place, which leaves zeros and old copies between its records: they look for the next record at every
byte. Source: rabbitmq.md 6.1, 6.7, 6.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.formats.layout import Positions, values_at
from storage_core.formats.rabbitmq.classic import message_file
from storage_core.formats.rabbitmq.erlang import ets_dump
from storage_core.formats.spans import structs_at
from storage_core.progress import report
from storage_core.rabbitmq.disk.damage import Damage

_WINDOW_SIZE = 8 << 20
_TAILS = {"torn": "an unfinished record at the end", "blank": "bytes after a record of length 0"}


@dataclass
class FileScan:
    """Records of one file: those of its walk in file order, then those found by searching.

    `stop` is where the walk ended, `reason` why, as in `message_file.walk`. `damages` are what a node skips.
    `with_containers`: a node of 3.13 or later wrote here, and skips nothing.
    """

    positions: Positions
    sizes: Positions
    ids: npt.NDArray[np.void]
    stop: int
    reason: str
    damages: list[Damage] = field(default_factory=list)
    with_containers: bool = False

    @property
    def hole(self) -> int | None:
        """Position of the first skipped byte; None if nothing is skipped."""
        return self.damages[0].position if self.damages else None

    def rows(self, number: int) -> npt.NDArray[np.void]:
        """The records as rows of message file `number`, of dtype INDEX_ROW."""
        rows = np.empty(len(self.positions), ets_dump.INDEX_ROW)
        rows["id"], rows["references"], rows["file"] = self.ids, -1, number
        rows["position"], rows["size"] = self.positions, self.sizes
        return rows


def scan_files(root: str, names: Sequence[str], work: str = "") -> list[FileScan]:
    """Scans the message files `names` below `root`; progress is reported under the name `work`."""
    scans, done = [], 0
    total = sum(system.stat(f"{root}/{name}").size for name in names) if work else 0
    for name in names:
        scans.append(scan_file(f"{root}/{name}", name))
        done += scans[-1].stop
        if work:
            report(work, done, total)
    if not any(scan.with_containers for scan in scans):
        return scans
    return [
        scan if scan.hole is None else scan_file(f"{root}/{name}", name, with_containers=True)
        for name, scan in zip(names, scans, strict=True)
    ]


def scan_file(path: str, name: str, start: int = 0, with_containers: bool = False) -> FileScan:
    """Walks one message file from `start` on in windows, skipping the content of large records. Searches for records
    after a hole if there are containers, in this file or, `with_containers`, in others of the store.
    """
    try:
        descriptor = system.open_read(path)
    except FileNotFoundError:
        return FileScan(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, "V16"), 0, "end")
    try:
        size = system.stat(path).size
        scan = _walk(descriptor, size, name, min(start, size))
        if scan.hole is not None:
            _search_every_position(descriptor, size, scan, scan.hole, with_containers)
        return scan
    finally:
        system.close(descriptor)


def _walk(descriptor: int, size: int, name: str, start: int) -> FileScan:
    window = np.empty(min(_WINDOW_SIZE, size - start), np.uint8)
    positions, sizes, ids, damages = [], [], [], []
    base, reason, with_containers = start, "more", False
    while reason == "more":
        count = system.pread_into(descriptor, window.data, base) if len(window) else 0
        if count < min(len(window), size - base):
            size = base + count  # a node has truncated the file meanwhile
        found = message_file.walk(window[:count], base, size)
        positions.append(found.positions)
        sizes.append(found.sizes)
        ids.append(structs_at(window[:count], message_file.HEAD.dtype, found.positions - base)["id"])
        with_containers = with_containers or message_file.has_container(window[:count], found.positions - base)
        damages += [_skipped(name, position) for position in found.unmarked.tolist()]
        reason = found.reason
        if reason == "more" and found.stop == base:
            # One record larger than the window: only its head and its marker are read.
            single, following = _large(descriptor, base)
            if single is None:
                damages.append(_skipped(name, base))
            else:
                positions.append(np.array([base], np.int64))
                sizes.append(np.array([following - base], np.int64))
                ids.append(single)
            base = following
        else:
            base = found.stop
        if base >= size:
            reason = "end"
    if reason in _TAILS:
        damages.append(Damage(name, base, size - base, f"{reason} tail", _TAILS[reason], served=False))
    joined = np.concatenate(ids) if ids else np.empty(0, "V16")
    return FileScan(np.concatenate(positions), np.concatenate(sizes), joined, base, reason, damages, with_containers)


def _search_every_position(descriptor: int, size: int, scan: FileScan, base: int, with_containers: bool) -> None:
    """Adds the records that begin anywhere from `base` on to a scan and clears its damages, if a node would search too.

    A node uses only those that a queue needs, so anything else in the form of a record does no harm.
    """
    window = np.empty(min(_WINDOW_SIZE, size - base), np.uint8)
    positions, sizes, ids = [scan.positions], [scan.sizes], [scan.ids]
    while size - base > message_file.HEAD.size:
        data = window[: system.pread_into(descriptor, window.data, base)]
        if len(data) <= message_file.HEAD.size:
            break  # a node has truncated the file meanwhile
        starts, lengths = message_file.framed(data, base, size)
        ends = starts + lengths - 1
        inside = ends < len(data)
        marked = values_at(data, "u1", ends) == message_file.MARKER
        marked[~inside] = [_is_marked(descriptor, base + end) for end in ends[~inside].tolist()]
        starts, lengths = starts[marked], lengths[marked]
        scan.with_containers = scan.with_containers or message_file.has_container(data, starts)
        positions.append(base + starts)
        sizes.append(lengths)
        ids.append(structs_at(data, message_file.HEAD.dtype, starts)["id"])
        base += len(data) - message_file.HEAD.size
    if scan.with_containers or with_containers:
        scan.positions, scan.sizes = np.concatenate(positions), np.concatenate(sizes)
        scan.ids = np.concatenate(ids)
        scan.damages, scan.with_containers = [], True


def _is_marked(descriptor: int, position: int) -> bool:
    return system.pread(descriptor, 1, position) == bytes((message_file.MARKER,))


def _skipped(name: str, position: int) -> Damage:
    reason = "a record without its end marker"
    return Damage(name, position, 0, "message", reason, served=False)


def _large(descriptor: int, base: int) -> tuple[npt.NDArray[np.void] | None, int]:
    head = np.frombuffer(system.pread(descriptor, message_file.HEAD.size, base), message_file.HEAD.dtype)
    following = base + int(head["size"][0]) + message_file.OVERHEAD
    return (head["id"] if _is_marked(descriptor, following - 1) else None), following
