"""What a node would make of one queue after a start: a pure judge over the terms and the message store's state.

It touches nothing; `queue_files` applies the verdict. Source: rabbitmq.md 4.2 to 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.rabbitmq.recovery_terms import QueueTerms


@dataclass(frozen=True)
class Verdict:
    """How a queue comes up.

    `dirty`: entries whose message is gone are dropped without a word. `redelivered_below`: sequence ids below it have
    been delivered, None for all. `next_sequence_id` is None when it follows from the segments that live.
    `hidden`: the terms say that the queue is empty, and a node believes them.
    """

    dirty: bool
    redelivered_below: int | None
    next_sequence_id: int | None
    hidden: bool
    expected_count: int | None


def judge(terms: QueueTerms | None, store_clean: bool, trust_terms: bool = True) -> Verdict:
    """The verdict on one queue. `trust_terms` False (`recovery=none`) serves what the files hold, whatever they say."""
    if terms is None:
        return Verdict(True, None, None, False, None)
    dirty = not store_clean or terms.segments is None
    if dirty and terms.segments is None:
        return Verdict(True, None, None, False, None)
    hidden = trust_terms and terms.persistent_count == 0
    count = terms.persistent_count if trust_terms else None
    return Verdict(dirty, terms.next_deliver_sequence_id, terms.next_sequence_id, hidden, count)


def next_sequence_id(verdict: Verdict, last_live: int | None, entry_count: int) -> int:
    """The sequence id that the next message would get: from the terms, else the first of the segment behind the last
    one that lives.
    """
    if verdict.next_sequence_id is not None:
        return verdict.next_sequence_id
    return 0 if last_live is None else (last_live // entry_count + 1) * entry_count
