"""What the state machine of a quorum queue holds between two commands.

A message is its raft index. Source: docs/format/rabbitmq-quorum.md 7 and 10. Leaves to `machine` what commands do, to
`snapshot_state` how a snapshot spells it.
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
"""Under what a consumer is known: its id, or, from machine version 5 on, the raft index with which it came."""
Status = str | tuple[str, str]
"""That of a consumer: up, cancelled, quiescing, suspected_down. In machine version 8 why it gets no messages now,
suspected_down or timeout, goes before what it is otherwise.
"""
OLDEST, APART, STRICT = 2, 5, 8
"""The oldest machine version that is read, the one from which on returns and failed deliveries are counted apart, and
the one that delivers strictly by priority, and whose snapshots keep entries from before their index.
"""
ACKNOWLEDGED_WITHIN = 1_800_000
"""Within how many ms, where nothing else is said, version 8 wants a message acknowledged."""
HIGH_OF_BEFORE = 9
"""The priority in version 8 of what lay in the high lane."""
SERIALS = 1 << 32
"""Delivery counts of AMQP 1.0 begin again there."""


@dataclass
class Settings:
    """The arguments of the queue that its machine knows; None where one is not set."""

    overflow: str = "drop_head"
    max_length: int | None = None
    max_bytes: int | None = None
    delivery_limit: int | None = None
    message_ttl_ms: int | None = None
    single_active: bool = False
    dead_letters: Any = "undefined"
    retry: tuple[str, int, int] | None = None
    """Of what returns, all, failed or returned is delayed, by how many ms at least and at most."""

    @property
    def limited(self) -> bool:
        """Whether the queue has a greatest length."""
        return self.max_length is not None or self.max_bytes is not None


@dataclass
class Consumer:
    """`checked_out` has the messages by message id, in the order of delivery. `most_credit`: it gets no more back.
    `serial`: its delivery count is one of AMQP 1.0. `prefetch` is what its client said. In machine version 8 it must
    settle each message within `timeout` ms; `deadlines` has until when, by message id, `overdue` which it did not.
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
        """Why it gets no messages now, in version 8; None where it does, or is gone."""
        return self.status[0] if isinstance(self.status, tuple) else None

    @property
    def has_serials(self) -> bool:
        """Whether its delivery count begins again after the last serial number; in version 8 each one's does."""
        return self.serial or self.timeout is not None

    def hold(self, index: int, now: int) -> None:
        """A message that it is given, for a credit."""
        self.checked_out[self.next_id] = index
        if self.timeout is not None:
            self.deadlines[self.next_id] = now + self.timeout
        self.next_id += 1
        self.credit -= 1
        self.advance(1)

    def take(self, number: int) -> int:
        """The message of that id, taken from it. KeyError when it has none."""
        self.deadlines.pop(number, None)
        return self.checked_out.pop(number)

    def advance(self, count: int) -> None:
        """So many more deliveries."""
        self.delivery_count += count
        if self.has_serials:
            self.delivery_count %= SERIALS

    def take_over(self, other: Consumer) -> None:
        """The terms of a later checkout."""
        self.credit_mode, self.once, self.priority = other.credit_mode, other.once, other.priority
        self.most_credit, self.serial, self.prefetch = other.most_credit, other.serial, other.prefetch


@dataclass(frozen=True)
class Outcome:
    """How a message went back: whether its delivery `failed`, and what its consumer noted on it."""

    failed: bool = False
    annotations: Mapping[Any, Any] = field(default_factory=dict)


RETURNED, FAILED = Outcome(), Outcome(True)


@dataclass
class DeadLetterWorker:
    """Who republishes what at-least-once dead lettering holds."""

    prefetch: int
    next_id: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)


@dataclass
class State:
    """The queue between two commands. `sizes`, `expiries` (ms) and `counts` (of returns) are by raft index; what is
    not in `sizes` is for the caller's table of the log to say. `failures` are, from machine version 5 on, deliveries
    that failed, and those that messages had before they came; `annotations` what consumers noted on what they
    returned. `clock` is the time of the last command, in ms, as far as it is known.
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
        """Whether a consumer gets its credit back with each message that returns, not for all of a command at once."""
        return self.version > OLDEST

    def upgraded(self, version: int, now: int) -> State:
        """This state under the rules of a later version, which it gets at `now`."""
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
        """What was returned, or is with a consumer, was returned as often as it was delivered."""
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
        """The keys of some consumers, in the order in which a node goes through them."""
        return sorted((key for key, consumer in self.consumers.items() if meant(consumer)), key=key_order)

    def take_waiting(self, key: ConsumerKey) -> Consumer | None:
        """Takes the first entry of a key out of the line of those that wait."""
        for place, (other, consumer) in enumerate(self.waiting):
            if other == key:
                del self.waiting[place]
                return consumer
        return None

    def pids(self) -> list[Opaque]:
        """Every process that the queue knows, some more than once: of consumers, of publishers, of those that wait."""
        return [
            *(self.consumers[key].id[1] for key in self.keys_where(lambda _: True)),
            *sorted((pid for pid in self.publishers if isinstance(pid, Opaque)), key=pid_key),
            *(consumer.id[1] for _, consumer in self.waiting),
        ]

    def learn(self, index: int, header: Any) -> None:
        """What a message's header says: its size, when it expires, how often it was returned. FormatError."""
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
        """A message that left the queue."""
        self.sizes.pop(index, None)
        self.expiries.pop(index, None)
        self.counts.pop(index, None)
        self.failures.pop(index, None)
        self.annotations.pop(index, None)

    @property
    def acquired(self) -> dict[int, int]:
        """How often messages were delivered before, by raft index; those that never were are left out."""
        return {**self.failures, **self.counts}

    @property
    def deliveries(self) -> dict[int, int]:
        """What a node says of that to a consumer: all of them, in version 8 those that failed."""
        return dict(self.failures) if self.version >= STRICT else self.acquired


class Header(NamedTuple):
    """What a header says; None for what it does not."""

    size: int
    expiry: int | None = None
    returns: int | None = None
    failures: int | None = None
    annotations: dict[Any, Any] | None = None


def header_fields(header: Any, version: int) -> Header:
    """The fields of a header in any of its three shapes. FormatError."""
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
    """The settings of the command that sets the queue's arguments. A delivery limit below 0 is none from 5 on."""

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
    """What of a queue's arguments says which returned messages are delayed; None for disabled."""
    if not isinstance(term, tuple):
        return None
    kind, least, most = term
    return str(kind), int(least), int(most)


def prefetch_of(meta: Any) -> int:
    """The prefetch count in the meta map of a checkout."""
    found = meta.get("prefetch") if isinstance(meta, dict) else None
    return found if isinstance(found, int) else 0


def credit_mode_of(term: Any) -> tuple[str, int, bool]:
    """Its name, the most credit that a consumer gets back (0: no limit), and whether it counts as AMQP 1.0 does."""
    if not isinstance(term, tuple):
        return str(term), 0, False
    name, number = term
    return str(name), int(number) if name == "simple_prefetch" else 0, name == "credited"
