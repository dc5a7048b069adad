"""What each queue wrote down at the last clean stop: the objects of `recovery.dets` as values.

Leaves to `recovery` what follows from them. Source: rabbitmq.md 1.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import dets
from storage_core.formats.rabbitmq.erlang.external_term import Atom


@dataclass(frozen=True)
class QueueTerms:
    """One queue's terms. `segments` maps segment numbers to live entries and is None when the term is missing.

    `client` is the queue's reference in the persistent store, None for a queue that is not durable.
    """

    directory: str
    version: int
    segments: dict[int, int] | None
    next_sequence_id: int
    next_deliver_sequence_id: int
    client: bytes | None
    persistent_count: int
    persistent_bytes: int

    def term(self) -> tuple[list[int], list[tuple[Atom, Any]]]:
        """The object as a node writes it."""
        pairs: list[tuple[Atom, Any]] = []
        if self.segments is not None and self.version == 1:
            pairs.append((Atom("segments"), sorted(self.segments.items(), reverse=True)))
        elif self.segments is not None:
            pairs.append((Atom("v2_index_state"), (2, dict(self.segments))))
        pairs += [
            (Atom("next_seq_id"), self.next_sequence_id),
            (Atom("next_deliver_seq_id"), self.next_deliver_sequence_id),
            (Atom("persistent_ref"), Atom("undefined") if self.client is None else self.client),
            (Atom("persistent_count"), self.persistent_count),
            (Atom("persistent_bytes"), self.persistent_bytes),
        ]
        return list(self.directory.encode()), pairs


def decode(data: bytes) -> dict[str, QueueTerms]:
    """Terms by queue directory. FormatError when the file is no table; an object that is no queue's is left out."""
    found = {}
    for item in dets.decode(data):
        terms = _terms(item)
        if terms is not None:
            found[terms.directory] = terms
    return found


def encode(queues: Iterable[QueueTerms]) -> bytes:
    """A `recovery.dets` with these terms."""
    return dets.encode([terms.term() for terms in queues])


def _terms(item: Any) -> QueueTerms | None:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], list) or not isinstance(item[1], list):
        return None
    try:
        directory = bytes(item[0]).decode()
    except (ValueError, TypeError):
        return None
    values = {pair[0]: pair[1] for pair in item[1] if isinstance(pair, tuple) and len(pair) == 2}
    version, segments = _segments(values)
    client = values.get("persistent_ref")
    return QueueTerms(
        directory,
        version,
        segments,
        _count(values, "next_seq_id"),
        _count(values, "next_deliver_seq_id"),
        client if isinstance(client, bytes) else None,
        _count(values, "persistent_count"),
        _count(values, "persistent_bytes"),
    )


def _segments(values: dict[Any, Any]) -> tuple[int, dict[int, int] | None]:
    state = values.get("v2_index_state")
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        return 2, state[1]
    listed = values.get("segments")
    if isinstance(listed, list):
        return 1, {pair[0]: pair[1] for pair in listed if isinstance(pair, tuple) and len(pair) == 2}
    return 1, None


def _count(values: dict[Any, Any], name: str) -> int:
    value = values.get(name, 0)
    if not isinstance(value, int) or value < 0:
        raise FormatError(0, f"the term {name} is {value!r}, no count")
    return value
