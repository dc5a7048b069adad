"""What a queue knows about its messages, in columns: a run holds any number of messages, in queue order.

The queue tracks where a run is (q1 to q4, delta, pending). Source: rabbitmq.md 7.1, "message status".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask

IN_RAM, PERSISTENT, IN_STORE, INDEX_ON_DISK, TO_INDEX = 1, 2, 4, 8, 16
"""Flags of a message: payload in memory; queue durable and message persistent; payload written to a message store;
index entry on disk; payload meant for the queue index (else for a message store)."""

ROW = np.dtype([("sequence_id", "i8"), ("id", "V16"), ("expiry", "i8"), ("size", "i8"), ("flags", "u1")])

Rows = npt.NDArray[Any]
Terms = npt.NDArray[np.object_]
SequenceIds = npt.NDArray[np.int64]


class MessageRun:
    """A run of messages. `rows` is a ROW array; `terms` holds each payload (the message term) or None.

    `expiry` is in the unit of the queue's clock, 0 for none; `size` is the length of the body.
    """

    __slots__ = ("rows", "terms")

    def __init__(self, rows: Rows, terms: Terms) -> None:
        self.rows, self.terms = rows, terms

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice | SequenceIds | Mask) -> MessageRun:
        return MessageRun(self.rows[key], self.terms[key])

    @property
    def sequence_ids(self) -> SequenceIds:
        """Sequence ids."""
        found: SequenceIds = self.rows["sequence_id"]
        return found

    @property
    def ids(self) -> Rows:
        """Message ids, 16 bytes each."""
        found: Rows = self.rows["id"]
        return found

    def has(self, flag: int) -> Mask:
        """Where `flag` is set."""
        found: Mask = (self.rows["flags"] & flag) != 0
        return found

    def where(self, mask: int, value: int) -> Mask:
        """Where the flags of `mask` are exactly `value`."""
        found: Mask = (self.rows["flags"] & mask) == value
        return found

    def count(self, flag: int) -> int:
        """Number of messages with `flag`."""
        return int(np.count_nonzero(self.rows["flags"] & flag))

    def body_bytes(self, mask: Mask | None = None) -> int:
        """Body bytes of all messages, or of those in `mask`."""
        sizes = self.rows["size"]
        return int(sizes.sum() if mask is None else sizes[mask].sum())

    def trimmed(self) -> MessageRun:
        """The run without the payloads meant for a message store."""
        leaving = self.where(IN_RAM | TO_INDEX, IN_RAM)
        if not leaving.any():
            return self
        rows, terms = self.rows.copy(), self.terms.copy()
        rows["flags"][leaving] &= np.uint8(~IN_RAM & 0xFF)
        terms[leaving] = None
        return MessageRun(rows, terms)

    def with_payloads(self, chosen: Mask, payloads: Sequence[bytes]) -> MessageRun:
        """The run with `payloads` in memory for the `chosen` messages, in order."""
        rows, terms = self.rows.copy(), self.terms.copy()
        rows["flags"][chosen] |= np.uint8(IN_RAM)
        terms[chosen] = object_array(payloads)
        return MessageRun(rows, terms)


def object_array(values: Sequence[object]) -> Terms:
    """`values` as a one-dimensional array of objects, whatever they are."""
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def empty_run() -> MessageRun:
    """No messages."""
    return MessageRun(np.empty(0, ROW), np.empty(0, np.object_))


def joined(runs: Sequence[MessageRun]) -> MessageRun:
    """The concatenated runs."""
    if len(runs) == 1:
        return runs[0]
    if not runs:
        return empty_run()
    return MessageRun(np.concatenate([run.rows for run in runs]), np.concatenate([run.terms for run in runs]))


def by_sequence(run: MessageRun) -> MessageRun:
    """The same messages by ascending sequence id."""
    sequence_ids = run.sequence_ids
    if len(sequence_ids) < 2 or (sequence_ids[1:] > sequence_ids[:-1]).all():
        return run
    return run[np.argsort(sequence_ids, kind="stable")]
