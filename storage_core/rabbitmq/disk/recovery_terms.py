"""What each queue recorded at the last clean stop: the objects of `recovery.dets` as values.

`verdict` determines what follows from them. Source: rabbitmq.md 1.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.formats.rabbitmq.erlang import dets
from storage_core.formats.rabbitmq.erlang.external_term import Atom

COUNTS = ("persistent_count", "persistent_bytes")
NEXT_IDS = ("next_seq_id", "next_deliver_seq_id")
REDELIVERED, DELIVERY_COUNTS = "redeliver_seq_id", "delivery_count"
"""4.3 writes the first instead of `next_deliver_seq_id`, which it uses if it finds both, and the second in addition."""


@dataclass(frozen=True)
class QueueTerms:
    """One queue's terms. `segments` maps segment numbers to live entries; it and the ids are None if the term is
    missing. A node then uses the end of the last segment as the next id, and that as the next id to deliver.
    `delivery_counts` are those of single messages that were returned, by sequence id; None before 4.3.

    `client` is the queue's reference in the persistent store, None for a queue that is not durable.
    """

    directory: str
    version: int
    segments: dict[int, int] | None
    next_sequence_id: int | None
    next_deliver_sequence_id: int | None
    client: bytes | None
    persistent_count: int
    persistent_bytes: int
    delivery_counts: Mapping[int, int] | None = None

    def term(self) -> tuple[list[int], list[tuple[Atom, Any]]]:
        """The object as a node writes it."""
        pairs: list[tuple[Atom, Any]] = []
        if self.segments is not None and self.version == 1:
            pairs.append((Atom("segments"), sorted(self.segments.items(), reverse=True)))
        elif self.segments is not None:
            pairs.append((Atom("v2_index_state"), (2, dict(self.segments))))
        names = NEXT_IDS if self.delivery_counts is None else (NEXT_IDS[0], REDELIVERED)
        following = zip(names, (self.next_sequence_id, self.next_deliver_sequence_id), strict=True)
        pairs += [(Atom(name), number) for name, number in following if number is not None]
        if self.delivery_counts is not None:
            pairs.append((Atom(DELIVERY_COUNTS), dict(self.delivery_counts)))
        pairs += [
            (Atom("persistent_ref"), Atom("undefined") if self.client is None else self.client),
            (Atom("persistent_count"), self.persistent_count),
            (Atom("persistent_bytes"), self.persistent_bytes),
        ]
        return list(self.directory.encode()), pairs


def decode(data: bytes) -> dict[str, QueueTerms]:
    """Terms by queue directory. Raises FormatError if the file is not a table; omits objects that belong to no queue
    or lack what a queue needs to start with its terms.
    """
    found = {}
    for item in dets.decode(data):
        terms = terms_of(item)
        if terms is not None:
            found[terms.directory] = terms
    return found


def encode(queues: Iterable[QueueTerms]) -> bytes:
    """A `recovery.dets` with these terms."""
    return dets.encode([terms.term() for terms in queues])


def terms_of(item: Any) -> QueueTerms | None:
    """The terms of one object; None if a queue does not start with them."""
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], list) or not isinstance(item[1], list):
        return None
    try:
        directory = bytes(item[0]).decode()
    except (ValueError, TypeError):
        return None
    values = {pair[0]: pair[1] for pair in item[1] if isinstance(pair, tuple) and len(pair) == 2}
    values.setdefault(NEXT_IDS[1], values.get(REDELIVERED))
    following = [values.get(name) for name in NEXT_IDS]
    counts = [values.get(name) for name in COUNTS] + [number for number in following if number is not None]
    if "persistent_ref" not in values or not all(map(_is_count, counts)):
        return None
    version, segments = _segments(values)
    client, noted = values["persistent_ref"], values.get(DELIVERY_COUNTS)
    return QueueTerms(
        directory,
        version,
        segments,
        values.get(NEXT_IDS[0]),
        values[NEXT_IDS[1]],
        client if isinstance(client, bytes) else None,
        values["persistent_count"],
        values["persistent_bytes"],
        _counts(noted.items()) if isinstance(noted, dict) else None,
    )


def _segments(values: dict[Any, Any]) -> tuple[int, dict[int, int] | None]:
    state = values.get("v2_index_state")
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        return 2, _counts(state[1].items())
    listed = values.get("segments")
    if isinstance(listed, list):
        return 1, _counts(pair for pair in listed if isinstance(pair, tuple) and len(pair) == 2)
    return 1, None


def _counts(pairs: Iterable[tuple[Any, Any]]) -> dict[int, int]:
    return {number: count for number, count in pairs if _is_count(number) and _is_count(count)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
