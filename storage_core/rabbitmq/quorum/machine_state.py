"""What the state machine of a quorum queue holds, and the state of a snapshot brought into it.

A message is its raft index. Source: docs/format/rabbitmq-quorum.md 5, 7 and 10. Leaves to `machine` what commands do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import ImproperList, Opaque

ConsumerId = tuple[bytes, Opaque]


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
    """`checked_out` has the messages by message id, in the order of delivery."""

    credit: int
    credit_mode: str
    once: bool
    priority: int
    status: str = "up"
    next_id: int = 0
    delivery_count: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)


@dataclass
class DeadLetterWorker:
    """Who republishes what at-least-once dead lettering holds."""

    prefetch: int
    next_id: int = 0
    checked_out: dict[int, int] = field(default_factory=dict)


@dataclass
class State:
    """The queue between two commands. `sizes`, `expiries` (ms) and `counts` (of deliveries) are by raft index; what is
    not in `sizes` is for the caller's table of the log to say.
    """

    settings: Settings = field(default_factory=Settings)
    messages: deque[int] = field(default_factory=deque)
    returns: deque[int] = field(default_factory=deque)
    consumers: dict[ConsumerId, Consumer] = field(default_factory=dict)
    waiting: list[tuple[ConsumerId, Consumer]] = field(default_factory=list)
    service: dict[int, deque[ConsumerId]] = field(default_factory=dict)
    publishers: dict[Opaque, int] = field(default_factory=dict)
    worker: DeadLetterWorker | None = None
    discards: deque[int] = field(default_factory=deque)
    sizes: dict[int, int] = field(default_factory=dict)
    expiries: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def held(self) -> Iterator[int]:
        """Every message of the queue: ready, with a consumer, or held for the dead-letter worker."""
        consumers = (*self.consumers.values(), *(consumer for _, consumer in self.waiting))
        workers = () if self.worker is None else (self.worker,)
        return chain(
            self.messages, self.returns, self.discards, *(one.checked_out.values() for one in (*consumers, *workers))
        )

    def learn(self, index: int, header: Any) -> None:
        """What a message's header says: its size, when it expires, how often it was returned. FormatError."""
        size, expiry, count = header_fields(header)
        self.sizes[index] = size
        if expiry is not None:
            self.expiries[index] = expiry
        if count is not None:
            self.counts[index] = count

    def forget(self, index: int) -> None:
        """A message that left the queue."""
        self.sizes.pop(index, None)
        self.expiries.pop(index, None)
        self.counts.pop(index, None)


def header_fields(header: Any) -> tuple[int, int | None, int | None]:
    """Size, expiry and delivery count of a header in any of its three shapes. FormatError."""
    if isinstance(header, int):
        return header, None, None
    if isinstance(header, ImproperList) and len(header.items) == 1 and isinstance(header.tail, int):
        return header.items[0], header.tail, None
    if isinstance(header, dict) and isinstance(header.get("size"), int):
        return header["size"], header.get("expiry"), header.get("delivery_count")
    raise FormatError(0, "a message's header of an unknown shape")


def settings_of(config: dict[Any, Any]) -> Settings:
    """The settings of the command that sets the queue's arguments."""

    def number(name: str) -> int | None:
        value = config.get(name, "undefined")
        return value if isinstance(value, int) else None

    return Settings(
        str(config.get("overflow_strategy", "drop_head")),
        number("max_length"),
        number("max_bytes"),
        number("delivery_limit"),
        number("msg_ttl"),
        config.get("single_active_consumer_on", "false") == "true",
        config.get("dead_letter_handler", "undefined"),
    )


def from_snapshot(term: Any) -> State:
    """The state of a snapshot of machine version 2. FormatError for another shape."""
    try:
        return _from_snapshot(term)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        raise FormatError(0, "the state in the snapshot is not one of machine version 2") from None


def _from_snapshot(term: Any) -> State:
    if term[0] != "rabbit_fifo" or len(term) != 18:
        raise ValueError
    cfg = term[1]
    numbers = cfg[7], cfg[8], cfg[10], cfg[12]
    length, size, limit, ttl = (value if isinstance(value, int) else None for value in numbers)
    state = State(Settings(str(cfg[6]), length, size, limit, ttl, cfg[9] == "single_active", cfg[4]))
    state.messages = deque(_message(state, message) for message in _listed(term[2]))
    state.returns = deque(_message(state, message) for message in _listed(term[4]))
    state.publishers = {pid: int(enqueuer[1]) for pid, enqueuer in term[6].items()}
    state.consumers = {name: _consumer(state, consumer) for name, consumer in term[9].items()}
    state.service = _service(term[10])
    _dead_letters(state, term[11])
    state.waiting = [(name, _consumer(state, consumer)) for name, consumer in term[14]]
    return state


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
    return Consumer(credit, str(cfg[4]), cfg[5] == "once", int(cfg[6]), str(status), next_id, delivered, held)


def _service(term: Any) -> dict[int, deque[ConsumerId]]:
    """A priority queue: {queue, in, out, length}, or {pqueue, [{-priority, queue}]}."""
    parts = [(0, term)] if term[0] == "queue" else term[1]
    found: dict[int, deque[ConsumerId]] = {}
    for minus, queue in parts:
        listed = [*queue[2], *reversed(queue[1])]
        if listed:
            found[-minus if isinstance(minus, int) else 0] = deque(listed)
    return found


def _dead_letters(state: State, term: Any) -> None:
    _, worker, discards = term[:3]

    def held(entry: Any) -> int:
        # An improper list of the reason, the index and the size.
        index: int = entry.items[1]
        state.sizes[index] = int(entry.tail)
        return index

    state.discards = deque(held(entry) for entry in _listed(discards))
    if isinstance(worker, tuple):
        checked = {number: held(entry) for number, entry in sorted(worker[3].items())}
        state.worker = DeadLetterWorker(int(worker[2]), int(worker[4]), checked)
