"""A queue's journal: its records up to the first action that no node writes, and its damage.

Reading lists damage and continues (`read_journal`); opening the queue for writing refuses it (`index_recovery`).
Source: rabbitmq.md 2. `queue_directory` combines journal and segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import journal as format_journal
from storage_core.formats.rabbitmq.classic.journal import JournalRecords
from storage_core.formats.spans import structs_at
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import read_file
from storage_core.rabbitmq.index.entries import JOURNAL, PERSISTENT, IndexFile, Publishes, new_entries, nothing


@dataclass(frozen=True)
class JournalContent:
    """The valid records, and the damage after them: an `illegal` action, or an unfinished record, which a node
    ignores.
    """

    records: JournalRecords
    illegal: Damage | None
    torn: Damage | None


def decode(data: bytes, name: str) -> JournalContent:
    """Decodes the journal file `name`. A record that breaks the rules ends it; the records before it count."""
    records = format_journal.walk(data)
    row = first_illegal(records.kinds, records.sequence_ids)
    if row is not None:
        position = int(records.positions[row])
        illegal = Damage(name, position, len(data) - position, "journal", _why(records, row))
        return JournalContent(records.first(row), illegal, None)
    if records.reason != "torn":
        return JournalContent(records, None, None)
    reason = "an unfinished record at the end"
    torn = Damage(name, records.stop, len(data) - records.stop, "torn journal", reason, served=False)
    return JournalContent(records, None, torn)


def read_journal(folder: str, name: str, file: int) -> IndexFile:
    """Reads the journal of the queue directory `folder`: path `name` below the store, number `file` in its list."""
    data = read_file(f"{folder}/{paths.JOURNAL_FILE}")
    content = decode(data, name)
    records, damages = content.records, [damage for damage in (content.illegal, content.torn) if damage is not None]
    published = np.flatnonzero(records.kinds <= format_journal.PUBLISH_TRANSIENT)
    acked = records.sequence_ids[records.kinds == format_journal.ACK]
    if not len(published):
        return IndexFile(nothing(), acked, damages)
    positions = records.positions[published]
    fixed = structs_at(np.frombuffer(data, np.uint8), format_journal.PUBLISH.dtype, positions)
    entries = new_entries(len(published))
    entries["sequence_id"], entries["position"] = records.sequence_ids[published], positions
    entries["expiry"], entries["size"] = fixed["expiry"], fixed["size"]
    entries["length"] = format_journal.PUBLISH.size + records.embedded_sizes[published]
    entries["file"], entries["kind"] = file, JOURNAL
    entries["flags"] = np.where(records.kinds[published] == format_journal.PUBLISH_PERSISTENT, PERSISTENT, 0)
    stored = records.embedded_sizes[published] == 0
    return IndexFile(Publishes(entries, np.ascontiguousarray(fixed["id"]), stored), acked, damages)


def _why(records: JournalRecords, row: int) -> str:
    what = ("publish", "publish", "deliver", "ack")[int(records.kinds[row])]
    return f"the {what} of sequence id {int(records.sequence_ids[row])} does not follow what the journal says before"


def first_illegal(kinds: npt.NDArray[np.uint8], sequence_ids: npt.NDArray[np.int64]) -> int | None:
    """The first record at which a node's queue would crash: a publish that is not the first of its sequence id, a
    second deliver, an ack that is neither alone nor after a deliver. None when all are legal.
    """
    if not len(kinds):
        return None
    order = np.argsort(sequence_ids, kind="stable")
    action = np.maximum(kinds[order], format_journal.PUBLISH_TRANSIENT)  # 1 publish, 2 deliver, 3 ack
    fresh = np.ones(len(order), bool)
    fresh[1:] = sequence_ids[order][1:] != sequence_ids[order][:-1]
    before = np.zeros(len(order), np.uint8)
    before[1:] = action[:-1]
    before[fresh] = 0
    legal = fresh | ((action == before + 1) & (before > 0))
    # After publish, deliver and ack the entry is dropped: the sequence id may be published again.
    legal |= (before == format_journal.ACK) & (action == format_journal.PUBLISH_TRANSIENT)
    illegal = order[~legal]
    return int(illegal.min()) if len(illegal) else None
