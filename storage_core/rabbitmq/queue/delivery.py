"""Messages as a consumer receives them from a queue: single messages, and batches that are decoded on access.

Source: rabbitmq.md 6.3; the columns' names are those of docs/rabbitmq.md "Columns".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message
from storage_core.formats.rabbitmq.message.message_spans import whole_bodies
from storage_core.rabbitmq.index.message_run import SequenceIds, Terms


@dataclass(frozen=True)
class Delivery:
    """One message. `ack` and `requeue` accept its `sequence_id`.

    `priority`, for a message of a priority queue, is that of the queue behind it that held the message; else None.
    """

    sequence_id: int
    redelivered: bool
    term: bytes
    priority: int | None = None

    @cached_property
    def message(self) -> Message:
        """The message as it was published. Raises FormatError if its term is damaged."""
        return basic_message.decode(self.term)

    @property
    def body(self) -> bytes:
        """The body as it was published."""
        return self.message.body

    @cached_property
    def properties(self) -> dict[str, object]:
        """The properties that are set, by name: bytes, numbers, and a list of items for `headers`."""
        return properties.decode(self.message.properties)


@dataclass
class TermShape:
    """How the last terms began, up to and including the length of the body; similar messages share this head.

    The body is between the end of `head` and position `stop` of the term.
    """

    head: bytes = b""
    stop: int = 0

    def bodies(self, terms: list[bytes]) -> list[bytes] | None:
        """The bodies if all terms begin with `head`, else None."""
        head, start, stop = self.head, len(self.head), self.stop
        if not head or not all(len(term) > stop and term.startswith(head) for term in terms):
            return None
        return [term[start:stop] for term in terms]


class Deliveries(Sequence[Delivery]):
    """Messages taken together, in queue order. `sequence_ids` and `redelivered` are arrays of shape (n,).

    For a priority queue `priorities` has the same shape, else it is None.
    """

    def __init__(
        self,
        sequence_ids: SequenceIds,
        redelivered: Mask,
        terms: Terms,
        shape: TermShape | None = None,
        priorities: SequenceIds | None = None,
    ) -> None:
        self.sequence_ids, self.redelivered, self.terms = sequence_ids, redelivered, terms
        self.priorities = priorities
        self._shape = shape or TermShape()

    def __len__(self) -> int:
        return len(self.sequence_ids)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> Deliveries: ...

    def __getitem__(self, index: int | slice) -> Delivery | Deliveries:
        if isinstance(index, slice):
            priorities = None if self.priorities is None else self.priorities[index]
            return Deliveries(
                self.sequence_ids[index], self.redelivered[index], self.terms[index], self._shape, priorities
            )
        priority = None if self.priorities is None else int(self.priorities[index])
        return Delivery(int(self.sequence_ids[index]), bool(self.redelivered[index]), self.terms[index], priority)

    def __iter__(self) -> Iterator[Delivery]:
        priorities = [None] * len(self) if self.priorities is None else self.priorities.tolist()
        rows = zip(self.sequence_ids.tolist(), self.redelivered.tolist(), self.terms.tolist(), priorities, strict=True)
        return (Delivery(*row) for row in rows)

    def bodies(self) -> list[bytes]:
        """All bodies at once. Raises FormatError if a term is damaged."""
        terms = self.terms.tolist()
        found = self._shape.bodies(terms) if terms else []
        if found is not None:
            return found
        data = b"".join(terms)
        stops = np.cumsum(np.fromiter(map(len, terms), np.int64, len(terms)))
        starts = np.concatenate(([0], stops[:-1]))
        spans = basic_message.locate(np.frombuffer(data, np.uint8), starts, stops)
        if spans.ok[0] and spans.body_starts[0] < spans.body_stops[0]:
            # With an empty body the head would end before the list of fragments and not include its length.
            self._shape.head, self._shape.stop = terms[0][: int(spans.body_starts[0])], int(spans.body_stops[0])
        if len(spans.pieces.rows):
            buffer, spans = whole_bodies(np.frombuffer(data, np.uint8), spans)
            data = buffer.tobytes()
        bodies = [data[a:b] for a, b in zip(spans.body_starts.tolist(), spans.body_stops.tolist(), strict=True)]
        for row in np.flatnonzero(~spans.known).tolist():
            bodies[row] = basic_message.decode(terms[row]).body
        return bodies
