"""A queue's journal, read: its publishes and acks, and the first action that no node writes.

Source: rabbitmq.md 2. Leaves to `queue_files` what journal and segments mean together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.rabbitmq import journal as format_journal
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.damage import Damage
from storage_core.rabbitmq.entries import JOURNAL, PERSISTENT, IndexFile, Publishes, new_entries, nothing
from storage_core.rabbitmq.span_reader import read_file


def read_journal(folder: str, name: str, file: int) -> IndexFile:
    """The journal of the queue directory `folder`, called `name` below the store and number `file` in its list.

    A record that follows no rule ends it: what stands before it counts, and the place is a damage.
    """
    data = read_file(f"{folder}/{paths.JOURNAL_FILE}")
    records = format_journal.walk(data)
    broken = first_illegal(records.kinds, records.sequence_ids)
    damages = []
    if broken is not None:
        position = int(records.positions[broken])
        damages.append(Damage(name, position, len(data) - position, "journal", _why(records, broken)))
    elif records.reason == "torn":
        length = len(data) - records.stop
        reason = "an unfinished record at the end; a node ignores it"
        damages.append(Damage(name, records.stop, length, "torn journal", reason, served=False))
    stop = len(records.kinds) if broken is None else broken
    kinds, sequence_ids = records.kinds[:stop], records.sequence_ids[:stop]
    published = np.flatnonzero(kinds <= format_journal.PUBLISH_TRANSIENT)
    acked = sequence_ids[kinds == format_journal.ACK]
    if not len(published):
        return IndexFile(nothing(), acked, damages)
    positions = records.positions[published]
    fixed = format_journal.PUBLISH.at(np.frombuffer(data, np.uint8), positions)
    entries = new_entries(len(published))
    entries["sequence_id"], entries["position"] = sequence_ids[published], positions
    entries["expiry"], entries["size"] = fixed["expiry"], fixed["size"]
    entries["length"] = format_journal.PUBLISH.size + records.embedded_sizes[published]
    entries["file"], entries["kind"] = file, JOURNAL
    entries["flags"] = np.where(kinds[published] == format_journal.PUBLISH_PERSISTENT, PERSISTENT, 0)
    stored = records.embedded_sizes[published] == 0
    return IndexFile(Publishes(entries, np.ascontiguousarray(fixed["id"]), stored), acked, damages)


def _why(records: format_journal.JournalRecords, row: int) -> str:
    what = ("publish", "publish", "deliver", "ack")[int(records.kinds[row])]
    return f"the {what} of sequence id {int(records.sequence_ids[row])} does not follow what the journal says before"


def first_illegal(kinds: npt.NDArray[np.uint8], sequence_ids: npt.NDArray[np.int64]) -> int | None:
    """The first record at which a node's queue would crash: a publish that is not the first of its sequence id, a
    second deliver, an ack that is neither alone nor behind a deliver. None when all are legal.
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
    # After publish, deliver and ack the entry is forgotten: the sequence id may begin anew.
    legal |= (before == format_journal.ACK) & (action == format_journal.PUBLISH_TRANSIENT)
    illegal = order[~legal]
    return int(illegal.min()) if len(illegal) else None
