"""What the state machine of a quorum queue holds, and the state of a snapshot brought into it.

A message is its raft index. Source: docs/format/rabbitmq-quorum.md 5, 7 and 10. Leaves to `machine` what commands do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import ImproperList, Opaque
from storage_core.rabbitmq.quorum.machine.lanes import Lanes
from storage_core.rabbitmq.quorum.machine.map_order import key_order, pid_key

ConsumerId = tuple[bytes, Opaque]
ConsumerKey = ConsumerId | int
"""Under what a consumer is known: its id, or, from machine version 5 on, the raft index with which it came."""
OLDEST, APART = 2, 5
"""The oldest machine version that is read, and the one that counts returns and deliveries apart."""
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

    @property
    def limited(self) -> bool:
        """Whether the queue has a greatest length."""
        return self.max_length is not None or self.max_bytes is not None


@dataclass
class Consumer:
    """`checked_out` has the messages by message id, in the order of delivery. `most_credit`: it gets no more back.
    `serial`: its delivery count is one of AMQP 1.0. `prefetch` is what its client said.
    """

    id: ConsumerId
    credit: int
    credit_mode: str
    once: bool
    priority: int
    status: str = "up"
    next_id: int = 0
    delivery_count: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)
    most_credit: int = 0
    serial: bool = False
    prefetch: int = 0

    def advance(self, count: int) -> None:
        """So many more deliveries."""
        self.delivery_count += count
        if self.serial:
            self.delivery_count %= SERIALS

    def take_over(self, other: Consumer) -> None:
        """The terms of a later checkout."""
        self.credit_mode, self.once, self.priority = other.credit_mode, other.once, other.priority
        self.most_credit, self.serial, self.prefetch = other.most_credit, other.serial, other.prefetch


@dataclass
class DeadLetterWorker:
    """Who republishes what at-least-once dead lettering holds."""

    prefetch: int
    next_id: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)


@dataclass
class State:
    """The queue between two commands. `sizes`, `expiries` (ms) and `counts` (of returns) are by raft index; what is
    not in `sizes` is for the caller's table of the log to say. `came_with` has the deliveries that messages had before
    they came, which machine version 5 keeps apart.
    """

    version: int = OLDEST
    settings: Settings = field(default_factory=Settings)
    messages: Lanes = field(default_factory=Lanes)
    returns: deque[int] = field(default_factory=deque)
    consumers: dict[ConsumerKey, Consumer] = field(default_factory=dict)
    waiting: list[tuple[ConsumerKey, Consumer]] = field(default_factory=list)
    service: dict[int, deque[ConsumerKey]] = field(default_factory=dict)
    publishers: dict[Opaque, int] = field(default_factory=dict)
    worker: DeadLetterWorker | None = None
    discards: deque[int] = field(default_factory=deque)
    sizes: dict[int, int] = field(default_factory=dict)
    expiries: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    came_with: dict[int, int] = field(default_factory=dict)

    @property
    def credit_by_message(self) -> bool:
        """Whether a consumer gets its credit back with each message that returns, not for all of a command at once."""
        return self.version > OLDEST

    def upgraded(self, version: int) -> State:
        """This state under the rules of a later version."""
        if self.version == OLDEST:
            for consumer in self.consumers.values():
                if consumer.credit_mode == "simple_prefetch":
                    consumer.most_credit = consumer.prefetch
        self.version = version
        if version >= APART:
            self.messages.turn = 0
            gone_back = {*self.returns, *(each for one in self.consumers.values() for each in one.checked_out.values())}
            for index in self.counts.keys() - gone_back:
                self.came_with[index] = self.counts.pop(index)
        return self

    def held(self) -> Iterator[int]:
        """Every message of the queue: ready, with a consumer, or held for the dead-letter worker."""
        consumers = (*self.consumers.values(), *(consumer for _, consumer in self.waiting))
        workers = () if self.worker is None else (self.worker,)
        return chain(
            self.messages, self.returns, self.discards, *(one.checked_out.values() for one in (*consumers, *workers))
        )

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
            *sorted(self.publishers, key=pid_key),
            *(consumer.id[1] for _, consumer in self.waiting),
        ]

    def learn(self, index: int, header: Any) -> None:
        """What a message's header says: its size, when it expires, how often it was returned. FormatError."""
        found = header_fields(header, self.version)
        self.sizes[index] = found.size
        for values, value in (
            (self.expiries, found.expiry), (self.counts, found.returns), (self.came_with, found.came_with),
        ):  # fmt: skip
            if value is not None:
                values[index] = value

    def forget(self, index: int) -> None:
        """A message that left the queue."""
        self.sizes.pop(index, None)
        self.expiries.pop(index, None)
        self.counts.pop(index, None)
        self.came_with.pop(index, None)

    @property
    def deliveries(self) -> dict[int, int]:
        """How often messages were delivered before, by raft index; those that never were are left out."""
        return {**self.came_with, **self.counts}


class Header(NamedTuple):
    """What a header says; None for what it does not."""

    size: int
    expiry: int | None = None
    returns: int | None = None
    came_with: int | None = None


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
    returns = header.get("acquired_count")
    return Header(size, expiry, returns, deliveries if returns is None else None)


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
    )


def from_snapshot(term: Any, version: int) -> State:
    """The state of a snapshot of machine version 2, 3 or 5. FormatError for another shape."""
    try:
        return _from_snapshot(term, version)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        raise FormatError(0, f"the state in the snapshot is not one of machine version {version}") from None


def _from_snapshot(term: Any, version: int) -> State:
    if term[0] != "rabbit_fifo" or len(term) != 18:
        raise ValueError
    cfg = term[1]
    numbers = cfg[7], cfg[8], cfg[10], cfg[12]
    length, size, limit, ttl = (value if isinstance(value, int) else None for value in numbers)
    state = State(version, Settings(str(cfg[6]), length, size, limit, ttl, cfg[9] == "single_active", cfg[4]))
    state.messages = _lanes(state, term[2])
    state.returns = deque(_message(state, message) for message in _listed(term[4]))
    state.publishers = {pid: int(enqueuer[1]) for pid, enqueuer in term[6].items()}
    state.consumers = {key: _consumer(state, consumer) for key, consumer in term[9].items()}
    state.service = _service(term[10])
    _dead_letters(state, term[11])
    state.waiting = [(key, _consumer(state, consumer)) for key, consumer in term[14]]
    return state


def _lanes(state: State, term: Any) -> Lanes:
    """The ready messages: a queue with a length, or, in version 5, {rabbit_fifo_q, high, normal, length, turn}."""
    if state.version < APART:
        return Lanes(_message(state, message) for message in _listed(term))
    _, high, normal, _, turn = term
    first, second = (
        [_message(state, message) for message in [*lane[1], *reversed(lane[0])]] for lane in (normal, high)
    )
    return Lanes(first, second, int(turn))


def _listed(queue: Any) -> list[Any]:
    """The elements of a queue with a length: {length, rear, front}."""
    _, rear, front = queue
    return [*front, *reversed(rear)]


def _message(state: State, message: Any) -> int:
    """[index | header] in one of its three spellings."""
    items, tail = message.items, message.tail
    header = ImproperList(items[1:], tail) if len(items) == 2 else tail
    if not isinstance(items[0], int):
        raise FormatError(0, "a message of before RabbitMQ 3.10 in the snapshot, whose body only its node can tell")
    state.learn(items[0], header)
    return items[0]


def _consumer(state: State, term: Any) -> Consumer:
    _, cfg, status, next_id, checked, credit, delivered = term
    held = {number: _message(state, message) for number, message in sorted(checked.items())}
    mode, most, serial = credit_mode_of(cfg[4])
    name = cfg[3], cfg[2]
    return Consumer(
        name, credit, mode, cfg[5] == "once", int(cfg[6]), str(status), next_id, delivered, held, most, serial,
        prefetch_of(cfg[1]),
    )  # fmt: skip


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


def _service(term: Any) -> dict[int, deque[ConsumerKey]]:
    """A priority queue: {queue, in, out, length}, or {pqueue, [{-priority, queue}]}."""
    parts = [(0, term)] if term[0] == "queue" else term[1]
    found: dict[int, deque[ConsumerKey]] = {}
    for minus, queue in parts:
        listed = [*queue[2], *reversed(queue[1])]
        if listed:
            found[-minus if isinstance(minus, int) else 0] = deque(listed)
    return found


def _dead_letters(state: State, term: Any) -> None:
    _, worker, discards = term[:3]

    def held(entry: Any) -> int:
        # An improper list of the reason, the index and the header.
        items: tuple[Any, ...] = entry.items
        header = ImproperList(items[2:], entry.tail) if len(items) == 3 else entry.tail
        state.sizes[items[1]] = header_fields(header, state.version).size
        return int(items[1])

    state.discards = deque(held(entry) for entry in _listed(discards))
    if isinstance(worker, tuple):
        checked = {number: held(entry) for number, entry in sorted(worker[3].items())}
        state.worker = DeadLetterWorker(int(worker[2]), int(worker[4]), checked)
