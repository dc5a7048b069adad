"""Index files for the stores of `make_store`: both keys of every message, as a broker dispatches them.

Chains and headers come from `index_insert`; this module determines the order of keys, and file names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.rocketmq.index_insert import EMPTY, Puts, encode_header, put, rolled, room
from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, key_hashes

FIRST_NAME = 20231114221320000
AT_ONCE = 1 << 20


def write_index(
    path: str,
    geometry: Geometry,
    topics: pa.StringArray,
    topic_of: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
    store_ms: npt.NDArray[np.int64],
) -> None:
    """Writes the index files of a store at `path` whose message i has the UNIQ_KEY and the key of number i.

    `topic_of` has the number of each message's topic in `topics`. All arrays have shape (n,).
    """
    os.makedirs(os.path.join(path, "index"))
    hashes = np.concatenate(list(_hashes(topics, topic_of)))
    puts = Puts(hashes, np.repeat(physical_offsets, 2), np.repeat(store_ms, 2))
    header, start, number = EMPTY, 0, 0
    while start < len(puts):
        header = rolled(header)
        part = puts.part(start, start + room(header, geometry))
        done = put(header, part, lambda slots: np.zeros(len(slots), np.int32), geometry)
        header = done.header
        with open(os.path.join(path, "index", str(FIRST_NAME + number)), "wb") as file:
            file.write(encode_header(header))
            table = np.zeros(geometry.slots, ">i4")
            table[done.slots] = done.values
            file.write(table.tobytes())
            file.seek(HEADER.size + SLOT.size * geometry.slots + ENTRY.size)
            file.write(done.entries.tobytes())
            file.truncate(geometry.file_size)
        start, number = start + len(part), number + 1


def key_of(number: int) -> str:
    """The key of a message, its one word of KEYS."""
    return f"ORD-{number:010d}"


def _hashes(topics: pa.StringArray, topic_of: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int32]]:
    """Per message the hash of its UNIQ_KEY, then that of its key."""
    for start in range(0, len(topic_of), AT_ONCE):
        named = topics.take(pa.array(topic_of[start : start + AT_ONCE]))
        numbers = np.arange(start, start + len(named))
        digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 10, "0")
        unique = pa.array([f"7F0000010000000000000000{number:08X}" for number in numbers.tolist()], pa.string())
        both = np.empty((len(named), 2), np.int32)
        both[:, 0] = key_hashes(named, unique)
        both[:, 1] = key_hashes(named, pc.binary_join_element_wise("ORD-", digits, ""))
        yield both.ravel()
