"""How a classic queue starts: what it serves of its files, given the terms of its last stop and the store's state.

Source: rabbitmq.md 1.3, 1.4, 4.2 to 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.disk.effects import FORGETS_AT_START, HIDES, REDELIVERS
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.index.entries import ACKED, Entries, filtered, flagged


@dataclass(frozen=True)
class Verdict:
    """How a queue starts.

    `dirty`: entries whose message is missing are silently dropped. `redelivered_below`: sequence ids below it have
    been delivered, None for all, and so have `redelivered_too`. `next_sequence_id` is None if it follows from the live
    segments. `hidden`: the terms state that the queue is empty, and a node relies on that. `expected_count` and
    `expected_bytes` are the numbers of messages and of body bytes in the terms; None if the terms are not relied on.
    """

    dirty: bool
    redelivered_below: int | None
    next_sequence_id: int | None
    hidden: bool
    expected_count: int | None
    expected_bytes: int | None
    redelivered_too: tuple[int, ...] = ()

    def redelivered(self, sequence_ids: npt.NDArray[np.int64]) -> Mask:
        """Which of the sequence ids, shape (n,), have been delivered."""
        if self.redelivered_below is None:
            return np.ones(len(sequence_ids), np.bool_)
        below: Mask = sequence_ids < self.redelivered_below
        return below | np.isin(sequence_ids, self.redelivered_too) if self.redelivered_too else below


@dataclass(frozen=True)
class Disagreement:
    """What the terms of a queue's last stop, or its entries, state but its files do not hold. `effect` is what a node
    does in that case, `advice` what a reader can do.
    """

    reason: str
    effect: str
    advice: str = ""

    @property
    def text(self) -> str:
        """The full text, for a warning."""
        return f"{self.reason}; {self.advice or f'a node {self.effect}'}"


def verdict_on(terms: QueueTerms | None, store_clean: bool, entry_count: int, trust_terms: bool = True) -> Verdict:
    """The verdict on one queue, with `entry_count` entries per segment. `trust_terms` False (`recovery=none`) serves
    what the files hold, whatever the terms state.
    """
    if terms is None:
        return Verdict(True, None, None, False, None, None)
    dirty = not store_clean or terms.segments is None
    hidden = trust_terms and terms.persistent_count == 0
    count, size = (terms.persistent_count, terms.persistent_bytes) if trust_terms else (None, None)
    following, delivered = terms.next_sequence_id, terms.next_deliver_sequence_id
    if following is None and terms.segments:
        following = (max(terms.segments) + 1) * entry_count
    below = following if delivered is None else delivered
    return Verdict(dirty, below, following, hidden, count, size, tuple(terms.delivery_counts or ()))


def crashes_at_start(verdict: Verdict, entries: Entries, stored: Mask, entry_count: int) -> bool:
    """Whether the terms of a clean stop contradict the messages, so that the queue crashes at startup and then starts
    as after a crash (rabbitmq.md 1.3, 1.4).

    It reads the first segment; the rest of the messages that the terms count must fit below the next sequence id. The
    bodies then in memory, those of messages that are not `stored`, must not exceed the bytes that the terms count.
    """
    count, following = verdict.expected_count, verdict.next_sequence_id
    if verdict.hidden or count is None or following is None:
        return False
    unacked = unacked_ids(entries)
    if not len(unacked):
        return False
    first = int(unacked[0]) // entry_count * entry_count
    end = min(first + entry_count, following)
    read = int(np.searchsorted(unacked, end))
    held = int(entries["size"][~flagged(entries, ACKED) & ~stored & (entries["sequence_id"] < end)].sum())
    short = verdict.expected_bytes is not None and held > verdict.expected_bytes
    return short or first + count > following or not read or not 0 <= count - read <= following - end


def unacked_ids(entries: Entries) -> npt.NDArray[np.int64]:
    """The sequence ids that are not acknowledged, ascending."""
    return filtered(entries["sequence_id"], ~flagged(entries, ACKED))


def next_sequence_id(verdict: Verdict, last_live: int | None, entry_count: int) -> int:
    """The sequence id that the next message would get: from the terms, else the first of the segment after the last
    live one.
    """
    if verdict.next_sequence_id is not None:
        return verdict.next_sequence_id
    return 0 if last_live is None else (last_live // entry_count + 1) * entry_count


def forgotten(count: int) -> Disagreement:
    """States that a node recovers the queue without `count` entries, whose messages are in no message file."""
    return Disagreement(f"{count} messages are in no message file", FORGETS_AT_START)


def disagreement(by_terms: Verdict, unacked: npt.NDArray[np.int64], version: int) -> Disagreement | None:
    """How the terms of the last stop and the messages of a queue disagree; None if they agree. `by_terms` is the
    verdict by the terms alone, `unacked` are the sequence ids of the messages, `version` is the queue's.
    """
    count, following = by_terms.expected_count, by_terms.next_sequence_id
    if by_terms.hidden and len(unacked):
        live = len(unacked)
        reason = f"{paths.RECOVERY_FILE} says that the queue is empty, so a node shows none of its {live} messages"
        return Disagreement(reason, HIDES, "the option recovery=none reads them")
    if count is None:
        return None
    if count != len(unacked):
        return Disagreement(f"{len(unacked)} messages, and {paths.RECOVERY_FILE} says {count}", REDELIVERS)
    if version == 1 and following is not None and len(unacked) and unacked[-1] >= following:
        reason = (
            f"a message of sequence id {unacked[-1]}, and {paths.RECOVERY_FILE} says that the next one gets "
            f"{following}: is {paths.CONFIG_FILE} the one of this store?"
        )
        return Disagreement(reason, REDELIVERS)
    return None
