"""Reads one segment of a version-2 queue: the entries of its `.qi` and where their messages are stored.

Source: rabbitmq.md 8. Acknowledged entries are zeroed there, so none is ever found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.files.small_file import read_at
from storage_core.formats.layout import Bytes
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.rabbitmq.disk import effects
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import read_file
from storage_core.rabbitmq.index.entries import (
    NOWHERE,
    OWN,
    PERSISTENT,
    Entries,
    IndexFile,
    Publishes,
    new_entries,
    nothing,
)


def read_segment(path: str, name: str, file: int, own_file: int, own_size: int, others: Callable[[], int]) -> IndexFile:
    """Reads the `.qi` at `path`, called `name` below the store and number `file` in its list; its `.qs` is `own_file`,
    of `own_size` bytes. `others` returns the entries of a segment whose header does not show them. A persistent entry's
    address past the end of the `.qs` is damage, and so is an entry that no node writes.
    """
    data = np.frombuffer(read_file(path), np.uint8)
    none = np.empty(0, np.int64)
    number = paths.number_of(name.rpartition("/")[2], paths.INDEX2_SUFFIX) or 0
    count = queue_v2.entry_count_of(data[: queue_v2.HEADER.size].tobytes(), number) or others()
    try:
        first, following = queue_v2.decode_header(data, queue_v2.INDEX_MAGIC, number, count)
    except FormatError as error:
        awaited = number * count if len(data) < queue_v2.HEADER.size else None
        damage = Damage(
            name, error.position, len(data), "segment", error.reason, awaited=awaited, effect=effects.VERSION_2_HEADER
        )
        return IndexFile(nothing(), none, [damage])
    listed = queue_v2.decode_entries(data, following - first)
    damages = list(_flaws(name, data, listed, first))
    rows = np.flatnonzero((listed["status"] != 0) & queue_v2.has_place(listed))
    fixed = listed[rows]
    entries = new_entries(len(rows))
    entries["sequence_id"] = first + rows
    entries["expiry"], entries["size"] = fixed["expiry"], fixed["size"]
    entries["flags"] = np.where(fixed["flags"] & queue_v2.FLAG_PERSISTENT, PERSISTENT, 0)
    entries["position"] = queue_v2.position_of(rows)
    entries["length"], entries["file"], entries["kind"] = queue_v2.ENTRY.size, file, NOWHERE
    own = fixed["location"] == queue_v2.LOCATION_OWN
    address = np.ascontiguousarray(fixed["address"]).view(queue_v2.ADDRESS.dtype)
    past_end = queue_v2.end_in_store(address) > own_size
    lost = own & past_end & (entries["flags"] == PERSISTENT)
    damages += [_past_end_damage(name, entries, row) for row in np.flatnonzero(lost).tolist()]
    own &= ~past_end
    entries["position"][own] = address["position"][own]
    entries["length"][own] = queue_v2.STORED.size + address["term_size"][own].astype(np.int64)
    entries["file"][own], entries["kind"][own] = own_file, OWN
    stored = fixed["location"] == queue_v2.LOCATION_SHARED
    keep = own | stored
    ids = np.ascontiguousarray(fixed["address"][keep])
    return IndexFile(Publishes(entries[keep], ids, stored[keep]), none, damages, following - first)


def entry_count_in(folder: str, names: Iterable[str]) -> int | None:
    """The entries of a segment by the first valid header of a `.qi` file among the `names`, or else of a `.qs` file;
    None if there is none.
    """
    listed = list(names)
    for suffix in (paths.INDEX2_SUFFIX, paths.STORE2_SUFFIX):
        for name in listed:
            number = paths.number_of(name, suffix)
            if number is not None:
                count = queue_v2.entry_count_of(read_at(f"{folder}/{name}", queue_v2.HEADER.size), number)
                if count is not None:
                    return count
    return None


def _flaws(name: str, data: Bytes, listed: npt.NDArray[np.void], first: int) -> Iterator[Damage]:
    """Entries that no node writes, and an incomplete last entry."""
    for row in np.flatnonzero(queue_v2.is_flawed(listed)).tolist():
        flaw, size = queue_v2.flaw_of(listed[row]), queue_v2.ENTRY.size
        reason, harmless = f"the entry of sequence id {first + row}: {flaw}", flaw != queue_v2.NO_PLACE
        effect = effects.VERSION_2_ENTRY if harmless else effects.VERSION_2_NO_PLACE
        yield Damage(name, queue_v2.position_of(row), size, "segment", reason, harmless=harmless, effect=effect)
    end = queue_v2.position_of(len(listed))
    left = len(data) - end
    if 0 < left < queue_v2.ENTRY.size:
        reason = f"the entry of sequence id {first + len(listed)} has {left} of {queue_v2.ENTRY.size} bytes"
        yield Damage(name, end, left, "segment", reason, effect=effects.VERSION_2_CUT_ENTRY)


def _past_end_damage(name: str, entries: Entries, row: int) -> Damage:
    sequence_id, position = int(entries["sequence_id"][row]), int(entries["position"][row])
    reason = f"the message of sequence id {sequence_id} lies after the end of its .qs file"
    size, effect = queue_v2.ENTRY.size, effects.VERSION_2_PAST_END
    return Damage(name, position, size, "segment", reason, awaited=sequence_id, effect=effect)
