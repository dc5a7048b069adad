"""The state that the machine of a quorum queue holds between two commands.

A message is represented by its raft index. Source: docs/format/rabbitmq-quorum.md 7 and 10. Applying commands belongs
to `machine`, reading the state from a snapshot to `snapshot_state`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import ImproperList, Opaque
from storage_core.rabbitmq.quorum.machine.delayed import Delayed
from storage_core.rabbitmq.quorum.machine.lanes import Lanes
from storage_core.rabbitmq.quorum.machine.map_order import key_order, pid_key
from storage_core.rabbitmq.quorum.machine.message_facts import NORMAL_PRIORITY
from storage_core.rabbitmq.quorum.machine.priorities import Priorities

ConsumerId = tuple[bytes, Opaque]
ConsumerKey = ConsumerId | int
"""Identifies a consumer: its id, or, from machine version 4 on, the raft index of its checkout."""
Status = str | tuple[str, str]
"""The status of a consumer: up, cancelled, quiescing, suspected_down. In machine version 8 the reason why it gets no
messages now, suspected_down or timeout, precedes its status otherwise.
"""
OLDEST, APART, STRICT = 2, 4, 8
"""The oldest supported machine version, the one from which on returns and failed deliveries are counted separately, and
the one that delivers strictly by priority and whose snapshots keep entries from before their index.
"""
ACKNOWLEDGED_WITHIN = 1_800_000
"""The ms within which version 8 requires a message to be acknowledged, unless stated otherwise."""
HIGH_OF_BEFORE = 9
"""The priority in version 8 of messages from the high lane."""
SERIALS = 1 << 32
"""AMQP 1.0 delivery counts wrap around at this value."""


@dataclass
class Settings:
    """The arguments of the queue that its machine uses; None if one is not set."""

    overflow: str = "drop_head"
    max_length: int | None = None
    max_bytes: int | None = None
    delivery_limit: int | None = None
    message_ttl_ms: int | None = None
    single_active: bool = False
    dead_letters: Any = "undefined"
    retry: tuple[str, int, int] | None = None
    """Which returned messages are delayed (all, failed or returned), and by how many ms at least and at most."""

    @property
    def limited(self) -> bool:
        """Whether the queue has a maximum length."""
        return self.max_length is not None or self.max_bytes is not None


@dataclass
class Consumer:
    """`checked_out` has the messages by message id, in delivery order. Credit is given back up to `most_credit` only.
    `serial`: its delivery count is one of AMQP 1.0. `prefetch` is what its client requested. In machine version 8 it
    must settle each message within `timeout` ms; `deadlines` has the deadlines by message id, `overdue` those missed.
    """

    id: ConsumerId
    credit: int
    credit_mode: str
    once: bool
    priority: int
    status: Status = "up"
    next_id: int = 0
    delivery_count: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)
    most_credit: int = 0
    serial: bool = False
    prefetch: int = 0
    timeout: int | None = None
    deadlines: dict[int, int] = field(default_factory=dict)
    overdue: list[int] = field(default_factory=list)

    @property
    def away(self) -> str | None:
        """Why the consumer gets no messages now, in version 8; None if it does get them, or has left."""
        return self.status[0] if isinstance(self.status, tuple) else None

    @property
    def has_serials(self) -> bool:
        """Whether its delivery count wraps around after the last serial number; in version 8 every count does."""
        return self.serial or self.timeout is not None

    def hold(self, index: int, now: int) -> None:
        """Hands a message to the consumer, for one credit."""
        self.checked_out[self.next_id] = index
        if self.timeout is not None:
            self.deadlines[self.next_id] = now + self.timeout
        self.next_id += 1
        self.credit -= 1
        self.advance(1)

    def take(self, number: int) -> int:
        """Removes and returns the message with that id. Raises KeyError if the consumer has none."""
        self.deadlines.pop(number, None)
        return self.checked_out.pop(number)

    def advance(self, count: int) -> None:
        """Counts `count` more deliveries."""
        self.delivery_count += count
        if self.has_serials:
            self.delivery_count %= SERIALS

    def take_over(self, other: Consumer) -> None:
        """Takes over the terms of a later checkout."""
        self.credit_mode, self.once, self.priority = other.credit_mode, other.once, other.priority
        self.most_credit, self.serial, self.prefetch = other.most_credit, other.serial, other.prefetch


@dataclass(frozen=True)
class Outcome:
    """How a message was returned: whether its delivery `failed`, and what its consumer noted on it."""

    failed: bool = False
    annotations: Mapping[Any, Any] = field(default_factory=dict)


RETURNED, FAILED = Outcome(), Outcome(True)


@dataclass
class DeadLetterWorker:
    """The worker that republishes the messages held by at-least-once dead lettering."""

    prefetch: int
    next_id: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)


@dataclass
class State:
    """The queue between two commands. `sizes`, `expiries` (ms) and `counts` (of returns) are by raft index; sizes that
    are not in `sizes` come from the caller's table of the log. `failures` are, from machine version 5 on, failed
    deliveries and those that messages had before they arrived; `annotations` are what consumers noted on messages that
    they returned. `clock` is the time of the last command, in ms, as far as it is known.
    """

    version: int = OLDEST
    settings: Settings = field(default_factory=Settings)
    messages: Lanes | Priorities = field(default_factory=Lanes)
    returns: deque[int] = field(default_factory=deque)
    consumers: dict[ConsumerKey, Consumer] = field(default_factory=dict)
    waiting: list[tuple[ConsumerKey, Consumer]] = field(default_factory=list)
    service: dict[int, deque[ConsumerKey]] = field(default_factory=dict)
    publishers: dict[Any, int] = field(default_factory=dict)
    worker: DeadLetterWorker | None = None
    discards: deque[int] = field(default_factory=deque)
    sizes: dict[int, int] = field(default_factory=dict)
    expiries: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    annotations: dict[int, dict[Any, Any]] = field(default_factory=dict)
    delayed: Delayed = field(default_factory=Delayed)
    clock: int = 0

    @property
    def credit_by_message(self) -> bool:
        """Whether a consumer gets credit back with each returned message rather than for a whole command at once."""
        return self.version > OLDEST

    def upgraded(self, version: int, now: int) -> State:
        """Upgrades this state to the rules of a later version at the time `now`, and returns it."""
        if self.version == OLDEST:
            for consumer in self.consumers.values():
                if consumer.credit_mode == "simple_prefetch":
                    consumer.most_credit = consumer.prefetch
        if self.version < APART <= version:
            self._count_apart()
        if self.version < STRICT <= version:
            self._go_by_priority(now)
        self.version = version
        return self

    def _count_apart(self) -> None:
        """Counts messages that were returned, or that a consumer holds, as returned as often as they were delivered."""
        self.messages = Lanes(self.messages)
        self.failures = dict(self.counts)
        gone_back = {*self.returns, *(each for one in self.consumers.values() for each in one.checked_out.values())}
        self.counts = {index: count for index, count in self.counts.items() if index in gone_back}

    def _go_by_priority(self, now: int) -> None:
        before = self.messages
        if isinstance(before, Lanes):
            self.messages = Priorities({NORMAL_PRIORITY: before.normal, HIGH_OF_BEFORE: before.high})
        for consumer in (*self.consumers.values(), *(consumer for _, consumer in self.waiting)):
            consumer.timeout = ACKNOWLEDGED_WITHIN
            consumer.deadlines = dict.fromkeys(consumer.checked_out, now + ACKNOWLEDGED_WITHIN)
            if consumer.status == "suspected_down":
                consumer.status = "suspected_down", "up"

    def held(self) -> Iterator[int]:
        """Every message of the queue: ready, delayed, with a consumer, or held for the dead-letter worker."""
        consumers = (*self.consumers.values(), *(consumer for _, consumer in self.waiting))
        workers = () if self.worker is None else (self.worker,)
        return chain(
            self.messages, self.returns, self.delayed.due, self.discards,
            *(one.checked_out.values() for one in (*consumers, *workers)),
        )  # fmt: skip

    def keys_where(self, meant: Callable[[Consumer], bool]) -> list[ConsumerKey]:
        """The keys of the consumers that `meant` accepts, in the order in which a node iterates over them."""
        return sorted((key for key, consumer in self.consumers.items() if meant(consumer)), key=key_order)

    def take_waiting(self, key: ConsumerKey) -> Consumer | None:
        """Removes the first entry of a key from the waiting consumers and returns it; None if there is none."""
        for place, (other, consumer) in enumerate(self.waiting):
            if other == key:
                del self.waiting[place]
                return consumer
        return None

    def pids(self) -> list[Opaque]:
        """Every process that the queue knows, some more than once: of consumers, publishers, and waiting consumers."""
        return [
            *(self.consumers[key].id[1] for key in self.keys_where(lambda _: True)),
            *sorted((pid for pid in self.publishers if isinstance(pid, Opaque)), key=pid_key),
            *(consumer.id[1] for _, consumer in self.waiting),
        ]

    def learn(self, index: int, header: Any) -> None:
        """Records the fields of a message's header: its size, expiry, and number of returns. Raises FormatError."""
        found = header_fields(header, self.version)
        self.sizes[index] = found.size
        if found.annotations is not None:
            self.annotations[index] = found.annotations
        for values, value in (
            (self.expiries, found.expiry), (self.counts, found.returns), (self.failures, found.failures),
        ):  # fmt: skip
            if value is not None:
                values[index] = value

    def forget(self, index: int) -> None:
        """Removes the data of a message that left the queue."""
        self.sizes.pop(index, None)
        self.expiries.pop(index, None)
        self.counts.pop(index, None)
        self.failures.pop(index, None)
        self.annotations.pop(index, None)

    @property
    def acquired(self) -> dict[int, int]:
        """How often messages were delivered before, by raft index; those never delivered are left out."""
        return {**self.failures, **self.counts}

    @property
    def deliveries(self) -> dict[int, int]:
        """The delivery counts that a node reports to a consumer: of all deliveries, in version 8 of failed ones."""
        return dict(self.failures) if self.version >= STRICT else self.acquired


class Header(NamedTuple):
    """The fields of a header; None for those that it does not have."""

    size: int
    expiry: int | None = None
    returns: int | None = None
    failures: int | None = None
    annotations: dict[Any, Any] | None = None


def header_fields(header: Any, version: int) -> Header:
    """The fields of a header in any of its three shapes. Raises FormatError."""
    if isinstance(header, int):
        return Header(header)
    if isinstance(header, ImproperList) and len(header.items) == 1 and isinstance(header.tail, int):
        return Header(header.items[0], header.tail)
    if not isinstance(header, dict) or not isinstance(header.get("size"), int):
        raise FormatError(0, "a message's header of an unknown shape")
    size, expiry, deliveries = header["size"], header.get("expiry"), header.get("delivery_count")
    if version < APART:
        return Header(size, expiry, deliveries)
    return Header(size, expiry, header.get("acquired_count"), deliveries, header.get("anns"))


def settings_of(config: dict[Any, Any], version: int) -> Settings:
    """The settings from the command that sets the queue's arguments. From 5 on a delivery limit below 0 is none."""

    def number(name: str) -> int | None:
        value = config.get(name, "undefined")
        return value if isinstance(value, int) else None

    limit = number("delivery_limit")
    return Settings(
        str(config.get("overflow_strategy", "drop_head")),
        number("max_length"),
        number("max_bytes"),
        None if limit is not None and limit < 0 and version >= APART else limit,
        number("msg_ttl"),
        config.get("single_active_consumer_on", "false") == "true",
        config.get("dead_letter_handler", "undefined"),
        retry_of(config.get("delayed_retry")) if version >= STRICT else None,
    )


def retry_of(term: Any) -> tuple[str, int, int] | None:
    """The queue argument that states which returned messages are delayed; None for disabled."""
    if not isinstance(term, tuple):
        return None
    kind, least, most = term
    return str(kind), int(least), int(most)


def prefetch_of(meta: Any) -> int:
    """The prefetch count in the meta map of a checkout."""
    found = meta.get("prefetch") if isinstance(meta, dict) else None
    return found if isinstance(found, int) else 0


def credit_mode_of(term: Any) -> tuple[str, int, bool]:
    """The mode's name, the most credit a consumer gets back (0: no limit), and whether it counts as AMQP 1.0 does."""
    if not isinstance(term, tuple):
        return str(term), 0, False
    name, number = term
    return str(name), int(number) if name == "simple_prefetch" else 0, name == "credited"
