"""One segment of a version-2 queue, read: the entries of its `.qi` and where their messages lie.

Source: rabbitmq.md 8. An acknowledged entry is zeroed there, so none is ever seen.
"""

from __future__ import annotations

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
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


def read_segment(path: str, name: str, file: int, own_file: int, own_size: int) -> IndexFile:
    """The entries of the `.qi` at `path`, called `name` below the store; `own_file` is its `.qs` in the list, of
    `own_size` bytes. An address past the end of the `.qs` is damage.
    """
    data = np.frombuffer(read_file(path), np.uint8)
    none = np.empty(0, np.int64)
    number = paths.number_of(name.rpartition("/")[2], paths.INDEX2_SUFFIX) or 0
    try:
        first, following = queue_v2.decode_header(data, queue_v2.INDEX_MAGIC, number)
    except FormatError as error:
        awaited = number * queue_v2.SEGMENT_ENTRY_COUNT if len(data) < queue_v2.HEADER.size else None
        damage = Damage(name, error.position, len(data), "segment", error.reason, awaited=awaited)
        return IndexFile(nothing(), none, [damage])
    fixed = queue_v2.decode_entries(data, following - first)
    rows = np.flatnonzero(fixed["status"] == 1)
    fixed = fixed[rows]
    entries = new_entries(len(rows))
    entries["sequence_id"] = first + rows
    entries["expiry"], entries["size"] = fixed["expiry"], fixed["size"]
    entries["flags"] = np.where(fixed["flags"] & queue_v2.FLAG_PERSISTENT, PERSISTENT, 0)
    entries["position"] = queue_v2.HEADER.size + queue_v2.ENTRY.size * rows
    entries["length"], entries["file"], entries["kind"] = queue_v2.ENTRY.size, file, NOWHERE
    own = fixed["location"] == queue_v2.LOCATION_OWN
    address = np.ascontiguousarray(fixed["address"]).view(queue_v2.ADDRESS.dtype)
    stop = address["position"].astype(np.float64) + address["term_size"] + queue_v2.STORED.size
    damages = [
        Damage(
            name,
            int(entries["position"][row]),
            queue_v2.ENTRY.size,
            "segment",
            _behind(entries, row),
            awaited=int(entries["sequence_id"][row]),
        )
        for row in np.flatnonzero(own & (stop > own_size)).tolist()
    ]
    own &= stop <= own_size
    entries["position"][own] = address["position"][own]
    entries["length"][own] = queue_v2.STORED.size + address["term_size"][own].astype(np.int64)
    entries["file"][own], entries["kind"][own] = own_file, OWN
    keep = own | (fixed["location"] == queue_v2.LOCATION_SHARED)
    stored = fixed["location"][keep] == queue_v2.LOCATION_SHARED
    ids = np.ascontiguousarray(fixed["address"][keep])
    return IndexFile(Publishes(entries[keep], ids, stored), none, damages)


def _behind(entries: Entries, row: int) -> str:
    return f"the message of sequence id {int(entries['sequence_id'][row])} lies after the end of its .qs file"
