"""Removes entries from a queue's index as a consumer's ack does: adds journal records, or zeroes status bytes (`.qi`).

`repairing` decides which entries, and why. Source: rabbitmq.md 2, 3.1, 8.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from storage_core.files import system
from storage_core.files.small_file import read_whole
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import journal, queue_v2
from storage_core.rabbitmq.index.segment_reader import mark_counts
from storage_core.rabbitmq.index.segment_v2_reader import entry_count_in
from storage_core.repair.cut_bytes import CutBytes


def drop(folder: str, version: int, entry_count: int, sequence_ids: Collection[int], cut: CutBytes) -> None:
    """Acknowledges live entries of the queue directory `folder`: in its journal, in version 2 in its `.qi` files."""
    if version == 2:
        _clear(folder, sequence_ids, cut)
        return
    path = f"{folder}/{paths.JOURNAL_FILE}"
    data = read_whole(path) or b""
    records = journal.walk(data)
    if records.stop < len(data):
        cut.resize(path, records.stop)
    delivers = records.sequence_ids[records.kinds == journal.DELIVER].tolist()
    delivered = {*delivers, *_marked(folder, entry_count, sequence_ids)}
    added = b"".join(_marks(sequence_id, sequence_id in delivered) for sequence_id in sorted(sequence_ids))
    descriptor = system.open_write(path, create=True)
    try:
        system.pwrite(descriptor, added, records.stop)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)
    system.sync_folder(folder)


def _clear(folder: str, sequence_ids: Collection[int], cut: CutBytes) -> None:
    """Clears the status of entries of a version 2 queue."""
    names = sorted(system.names(folder))
    others = entry_count_in(folder, names) or queue_v2.SEGMENT_ENTRY_COUNT
    for name in names:
        number = paths.number_of(name, paths.INDEX2_SUFFIX)
        data = bytearray(read_whole(f"{folder}/{name}") or b"") if number is not None else bytearray()
        if number is None or len(data) < queue_v2.HEADER.size:
            continue
        read = np.frombuffer(bytes(data), np.uint8)
        first, following = queue_v2.decode_header(read, queue_v2.INDEX_MAGIC, number, others)
        places = [queue_v2.position_of(each - first) for each in sequence_ids if first <= each < following]
        # The range of a damaged header may include what other files list; what this one lists is not past its end.
        places = [place for place in places if place < len(data)]
        for place in places:
            data[place] = 0
        if places:
            cut.replace(f"{folder}/{name}", bytes(data))


def _marks(sequence_id: int, delivered: bool) -> bytes:
    one = np.array([sequence_id], np.int64)
    return (b"" if delivered else journal.encode_marks(journal.DELIVER, one)) + journal.encode_marks(journal.ACK, one)


def _marked(folder: str, entry_count: int, sequence_ids: Collection[int]) -> list[int]:
    """Which of the entries have a deliver in their segment."""
    found = []
    for number in {sequence_id // entry_count for sequence_id in sequence_ids}:
        counts = mark_counts(read_whole(f"{folder}/{number}{paths.SEGMENT_SUFFIX}") or b"")
        found += [number * entry_count + relative for relative, count in counts.items() if count]
    return found
