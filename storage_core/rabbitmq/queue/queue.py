"""The Python interface to one queue of a RabbitMQ store: publish, fetch, ack, requeue. Thread-safe; a context manager.

`open_store(path).queue(name)` returns one. The store is stopped cleanly when its last queue is closed.
`paging` pages the messages, `live_vhost` is the store while it is open for writing.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from storage_core.closable import Closable
from storage_core.errors import OptionError, StoreClosedError, closest
from storage_core.formats.rabbitmq.amqp import properties as property_list
from storage_core.formats.rabbitmq.message.message_template import MessageTemplate
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index import message_run as status
from storage_core.rabbitmq.index.message_run import ROW, MessageRun, SequenceIds, object_array
from storage_core.rabbitmq.paging.paging_queue import PagingQueue
from storage_core.rabbitmq.queue import opening
from storage_core.rabbitmq.queue.delivery import Deliveries, Delivery, TermShape

LONGEST_SHORT_STRING = 255
MOST_TEMPLATES = 64
Tags = int | Delivery | Deliveries | Iterable[int]


class MessageQueue(Closable):
    """A source of messages to fetch one by one, whatever is behind it."""

    @abstractmethod
    def fetch_many(self, count: int, ack_required: bool = True) -> Deliveries:
        """Fetches up to `count` messages. They stay pending in the queue until acknowledged or returned to it."""

    def fetch(self, ack_required: bool = True) -> Delivery | None:
        """Fetches the next message; None if the queue is empty."""
        taken = self.fetch_many(1, ack_required)
        return taken[0] if taken else None

    def __iter__(self) -> Iterator[Delivery]:
        """Fetches until the queue is empty; unacknowledged messages return when the store is opened again."""
        while (delivery := self.fetch()) is not None:
            yield delivery

    def __bool__(self) -> bool:
        """True even for an empty queue."""
        return True


class Queue(MessageQueue):
    """One queue. The first message that has to be on disk creates its directory."""

    def __init__(
        self,
        root: str,
        name: str,
        settings: Settings | None = None,
        vhost: str | None = None,
        durable: bool = True,
        lock_timeout_s: float = opening.LOCK_TIMEOUT_S,
        priority: int | None = None,
    ) -> None:
        """Creates a missing store. `priority` selects one of the queues behind an `x-max-priority` queue.

        Raises StoreLockedError, OptionError, UnsupportedFormatError, CorruptionError.
        """
        self.name = name
        known = None if vhost is None else vhost.encode()
        self._vhost = opening.acquire(root, settings or Settings(), known, lock_timeout_s)
        try:
            with self._vhost.working():
                self._queue = self._vhost.queue(name.encode(), priority, durable)
        except BaseException:
            opening.release(self._vhost)
            raise
        self._templates: dict[tuple[Any, ...], MessageTemplate] = {}
        self._shape = TermShape()
        self._open = True

    def together(self) -> AbstractContextManager[None]:
        """Holds the store, so that the operations inside appear as one to other threads."""
        if not self._open:
            raise StoreClosedError(f"queue {self.name} was closed; open it again")
        return self._vhost.working()

    @contextmanager
    def _operation(self) -> Iterator[PagingQueue]:
        """Holds the store for one operation and then completes its pending work."""
        with self.together():
            yield self._queue.paging
            self._queue.used()

    # publish

    def publish(self, body: bytes | str, **how: Any) -> int:
        """Publishes one message; returns its sequence id. `how` is as for `publish_many`."""
        return int(self._publish([body], batch=False, **how)[0])

    def publish_many(self, bodies: Sequence[bytes | str], **how: Any) -> SequenceIds:
        """Publishes messages as one batch; returns their sequence ids, shape (n,).

        `exchange` (default ""), `routing_keys` (default: the queue's name), `persistent` (default True),
        `expires_at_us` (µs since 1970), `raw_properties` (a property list) or properties by name: `content_type`,
        `correlation_id`, `headers` (a mapping of texts), … They apply to all `bodies`. The messages are only certain
        to be on disk after `sync`.
        """
        return self._publish(bodies, batch=True, **how)

    def _publish(
        self,
        bodies: Sequence[bytes | str],
        batch: bool,
        exchange: str = "",
        routing_keys: Sequence[str] | None = None,
        persistent: bool = True,
        expires_at_us: int | None = None,
        raw_properties: bytes | None = None,
        **properties: Any,
    ) -> SequenceIds:
        keys = tuple(routing_keys or (self.name,))
        listed = _listed(properties, persistent) if raw_properties is None else raw_properties
        template = self._template(exchange, keys, listed, persistent)
        raw = _as_bytes(bodies)
        ids = secrets.token_bytes(16 * len(raw))
        run = self._run(raw, ids, template, len(listed), persistent, expires_at_us)
        with self._operation() as paging:
            own = np.full(len(run), persistent)
            return (paging.publish(run, own=own, batch=batch) if len(run) else run.sequence_ids).copy()

    def _template(self, exchange: str, keys: tuple[str, ...], listed: bytes, persistent: bool) -> MessageTemplate:
        wanted = (exchange, keys, listed, persistent)
        template = self._templates.get(wanted)
        if template is None:
            encoded = [key.encode() for key in keys]
            for text in (exchange.encode(), *encoded):
                if len(text) > LONGEST_SHORT_STRING:
                    raise OptionError("routingKeys", text.decode(), f"at most {LONGEST_SHORT_STRING} bytes")
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            template = MessageTemplate(self._vhost.name, exchange.encode(), encoded, listed, persistent)
            self._templates[wanted] = template
        return template

    def _run(
        self,
        bodies: list[bytes],
        ids: bytes,
        template: MessageTemplate,
        listed_size: int,
        persistent: bool,
        expires_at_us: int | None,
    ) -> MessageRun:
        rows = np.zeros(len(bodies), ROW)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        rows["id"], rows["size"], rows["expiry"] = np.frombuffer(ids, "V16"), sizes, expires_at_us or 0
        durable = status.PERSISTENT if persistent and self._queue.durable else 0
        below = sizes + listed_size < self._vhost.settings.queue_index_embed_msgs_below
        rows["flags"] = status.IN_RAM | durable | np.where(below, status.TO_INDEX, 0)
        return MessageRun(rows, object_array(template.terms(bodies, ids)))

    # consume

    def fetch_many(self, count: int, ack_required: bool = True) -> Deliveries:
        """Fetches up to `count` messages."""
        with self._operation() as paging:
            self._queue.drop_expired(time.time_ns() // 1000)
            taken = paging.fetch(count, ack_required)
        return Deliveries(taken.run.sequence_ids, taken.redelivered, taken.run.terms, self._shape)

    def ack(self, tags: Tags) -> int:
        """Removes fetched messages for good; returns how many of them were pending."""
        with self._operation() as paging:
            return len(paging.ack(_sequence_ids(tags)))

    def requeue(self, tags: Tags) -> int:
        """Puts fetched messages back where they were; returns how many of them were pending."""
        with self._operation() as paging:
            return len(paging.requeue(_sequence_ids(tags)))

    def purge(self) -> int:
        """Removes every ready message; returns how many."""
        with self._operation() as paging:
            return paging.purge()

    def __len__(self) -> int:
        """Number of ready messages."""
        with self.together():
            return self._queue.paging.state.count

    @property
    def unacknowledged(self) -> int:
        """Number of messages fetched and not yet acknowledged."""
        with self.together():
            return len(self._queue.paging.state.pending)

    # memory and disk

    def set_ram_duration_target(self, seconds: float) -> None:
        """Sets how many seconds of the current traffic may be in memory; infinity lifts the limit."""
        with self._operation() as paging:
            paging.set_ram_duration_target(seconds)

    def set_target_ram_count(self, count: int | None) -> None:
        """Sets how many messages may be in memory; None lifts the limit."""
        with self._operation() as paging:
            paging.set_target_ram_count(count)

    def set_lazy(self, lazy: bool) -> None:
        """Switches lazy mode; a lazy queue keeps messages on disk from the start."""
        with self._operation() as paging:
            paging.set_lazy(lazy)

    def sync(self) -> None:
        """Returns once everything published and every acknowledgement is on disk."""
        with self.together():
            self._queue.sync()

    def close(self) -> None:
        """Closes the queue; closing the store's last queue stops the store cleanly."""
        if self._open:
            self._open = False
            opening.release(self._vhost)


def _as_bytes(bodies: Sequence[bytes | str]) -> list[bytes]:
    kinds = set(map(type, bodies))
    if kinds <= {bytes}:
        return list(bodies)  # type: ignore[arg-type]  # the types were just looked at
    return [body.encode() if isinstance(body, str) else bytes(body) for body in bodies]


def _listed(values: dict[str, Any], persistent: bool) -> bytes:
    """Encodes properties given by name as a property list."""
    known = [name for name, _ in property_list.FIELDS]
    for name in values:
        if name not in known:
            near = closest(name, known) or known
            raise OptionError("properties", name, f"no such property; close ones are {', '.join(near)}")
    properties = dict(values)
    properties.setdefault(
        "delivery_mode", property_list.PERSISTENT_MODE if persistent else property_list.TRANSIENT_MODE
    )
    for name, value in properties.items():
        if name == "headers" and isinstance(value, Mapping):
            properties[name] = [(key.encode(), "S", str(text).encode()) for key, text in value.items()]
        elif isinstance(value, str):
            properties[name] = value.encode()
    try:
        return property_list.encode(properties)
    except (ValueError, TypeError) as error:
        raise OptionError("properties", ", ".join(values), str(error)) from None


def _sequence_ids(tags: Tags) -> SequenceIds:
    if isinstance(tags, Delivery):
        tags = tags.sequence_id
    if isinstance(tags, int):
        return np.array([tags], np.int64)
    if isinstance(tags, Deliveries):
        return tags.sequence_ids
    found = np.array(list(tags), np.int64)
    _, first = np.unique(found, return_index=True)
    return found[np.sort(first)]
