"""The Python interface to a priority queue of a RabbitMQ store: one queue per priority, the highest emptied first.

The single queues are in `queue`. Source: rabbitmq.md 1.2, interface.md 31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from storage_core.errors import OptionError
from storage_core.formats.rabbitmq.amqp import properties as property_list
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index.message_run import SequenceIds, object_array
from storage_core.rabbitmq.queue import opening
from storage_core.rabbitmq.queue.delivery import Deliveries, Delivery, TermShape
from storage_core.rabbitmq.queue.queue import MessageQueue, Queue

PriorityTags = Delivery | Deliveries | Iterable[Delivery | tuple[int, int]]


class PriorityQueue(MessageQueue):
    """A queue with `x-max-priority`: sequence ids count per priority. Thread-safe; a context manager.

    A message's priority is that of its properties; none counts as 0, one above `max_priority` as `max_priority`.
    """

    def __init__(
        self,
        root: str,
        name: str,
        max_priority: int,
        settings: Settings | None = None,
        vhost: str | None = None,
        durable: bool = True,
        lock_timeout_s: float = opening.LOCK_TIMEOUT_S,
    ) -> None:
        """Raises what `Queue` raises."""
        self.name, self.max_priority = name, max_priority
        self._shape = TermShape()
        with ExitStack() as opened:
            self._queues = [
                opened.enter_context(Queue(root, name, settings, vhost, durable, lock_timeout_s, priority))
                for priority in range(max_priority + 1)
            ]
            self._open = opened.pop_all()

    # publish

    def publish(self, body: bytes | str, **how: Any) -> int:
        """Publishes one message; returns its sequence id within its priority."""
        return self._chosen(how).publish(body, **how)

    def publish_many(self, bodies: Sequence[bytes | str], **how: Any) -> SequenceIds:
        """Publishes messages of one priority as one batch, like `Queue.publish_many`; returns their sequence ids."""
        return self._chosen(how).publish_many(bodies, **how)

    def _chosen(self, how: dict[str, Any]) -> Queue:
        raw = how.get("raw_properties")
        priority = how.get("priority") if raw is None else property_list.decode(raw).get("priority")
        if priority is not None and not isinstance(priority, int):
            raise OptionError("properties", "priority", "it is a number from 0 to 255")
        return self._queues[min(priority or 0, self.max_priority)]

    # consume

    def fetch_many(self, count: int, ack_required: bool = True) -> Deliveries:
        """Fetches up to `count` messages, highest priority first, by sequence id within a priority."""
        parts: list[Deliveries] = []
        with self._queues[0].together():
            for queue in reversed(self._queues):
                left = count - sum(map(len, parts))
                if left <= 0:
                    break
                parts.append(queue.fetch_many(left, ack_required))
        priorities = [self.max_priority - index for index, part in enumerate(parts) for _ in range(len(part))]
        return Deliveries(
            np.concatenate([np.empty(0, np.int64), *(part.sequence_ids for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.redelivered for part in parts)]),
            np.concatenate([object_array([]), *(part.terms for part in parts)]),
            self._shape,
            np.array(priorities, np.int64),
        )

    def ack(self, tags: PriorityTags) -> int:
        """Removes fetched messages for good; returns how many of them were pending.

        `tags`: deliveries, or pairs (priority, sequence id).
        """
        return self._by_priority(tags, Queue.ack)

    def requeue(self, tags: PriorityTags) -> int:
        """Puts fetched messages back where they were; returns how many of them were pending."""
        return self._by_priority(tags, Queue.requeue)

    def _by_priority(self, tags: PriorityTags, action: Callable[[Queue, Iterable[int]], int]) -> int:
        chosen: dict[int, list[int]] = {}
        for priority, sequence_id in _pairs(tags):
            if not 0 <= priority <= self.max_priority:
                raise OptionError("tags", str(priority), f"priorities of {self.name} are 0 to {self.max_priority}")
            chosen.setdefault(priority, []).append(sequence_id)
        with self._queues[0].together():
            return sum(action(self._queues[priority], ids) for priority, ids in chosen.items())

    def purge(self) -> int:
        """Removes every ready message; returns how many."""
        with self._queues[0].together():
            return sum(queue.purge() for queue in self._queues)

    def __len__(self) -> int:
        """Number of ready messages."""
        with self._queues[0].together():
            return sum(map(len, self._queues))

    @property
    def unacknowledged(self) -> int:
        """Number of messages fetched and not yet acknowledged."""
        with self._queues[0].together():
            return sum(queue.unacknowledged for queue in self._queues)

    # memory and disk

    def set_ram_duration_target(self, seconds: float) -> None:
        """Sets how many seconds of the current traffic of each priority may be in memory; infinity lifts the limit."""
        for queue in self._queues:
            queue.set_ram_duration_target(seconds)

    def set_target_ram_count(self, count: int | None) -> None:
        """Sets how many messages of each priority may be in memory; None lifts the limit."""
        for queue in self._queues:
            queue.set_target_ram_count(count)

    def set_lazy(self, lazy: bool) -> None:
        """Switches lazy mode; lazy queues keep messages on disk from the start."""
        for queue in self._queues:
            queue.set_lazy(lazy)

    def sync(self) -> None:
        """Returns once everything published and every acknowledgement is on disk."""
        for queue in self._queues:
            queue.sync()

    def close(self) -> None:
        """Closes the queue; closing the store's last queue stops the store cleanly."""
        self._open.close()


def _pairs(tags: PriorityTags) -> Iterator[tuple[int, int]]:
    """Priority and sequence id of each tag."""
    for tag in (tags,) if isinstance(tags, Delivery) else tags:
        if isinstance(tag, Delivery) and tag.priority is not None:
            yield tag.priority, tag.sequence_id
        elif isinstance(tag, tuple) and len(tag) == 2:
            yield int(tag[0]), int(tag[1])
        else:
            wanted = "of a priority queue it is a delivery, or a pair (priority, sequence id)"
            raise OptionError("tags", str(tag), wanted)


def open_queue(
    root: str,
    name: str,
    settings: Settings,
    vhost: str,
    durable: bool,
    lock_timeout_s: float,
    priority: int | None,
    max_priority: int | None,
) -> Queue | PriorityQueue:
    """Opens the queue `name` of a store, as a priority queue if it was declared so or is new with `max_priority`.

    Raises OptionError if `max_priority` differs from the queue's, and what `Queue` raises.
    """
    running = opening.acquire(root, settings, vhost.encode(), lock_timeout_s)
    try:
        with running.working():
            most = running.max_priority(name, max_priority)
            if durable:
                running.declare(name, most)
        if priority is None and most is not None:
            return PriorityQueue(root, name, most, settings, vhost, durable, lock_timeout_s)
        return Queue(root, name, settings, vhost, durable, lock_timeout_s, priority)
    finally:
        opening.release(running)
