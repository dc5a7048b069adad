"""Converts the state in a snapshot of a quorum queue to the state from which its machine continues.

Source: docs/format/rabbitmq-quorum.md 5, 7 and 10.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import ImproperList
from storage_core.rabbitmq.quorum.machine.lanes import Lanes
from storage_core.rabbitmq.quorum.machine.priorities import HIGHEST, Priorities
from storage_core.rabbitmq.quorum.machine.state import (
    APART,
    STRICT,
    Consumer,
    ConsumerKey,
    DeadLetterWorker,
    Settings,
    State,
    Status,
    credit_mode_of,
    prefetch_of,
    retry_of,
)

_INDEX_BITS = 44
"""In a message that is one number: how many low bits hold its raft index; the bits above hold its size."""


def from_snapshot(term: Any, version: int) -> State:
    """The state of a snapshot of a supported machine version. Raises FormatError for another shape."""
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
    if version >= STRICT:
        state.settings.retry = retry_of(cfg[14])
        _delayed(state, term[17])
        state.clock = int(term[7])
    state.messages = _lanes(state, term[2])
    state.returns = deque(_message(state, message) for message in _listed(term[4]))
    state.publishers = {pid: int(enqueuer[1]) for pid, enqueuer in term[6].items()}
    state.consumers = {key: _consumer(state, consumer) for key, consumer in term[9].items()}
    state.service = _service(term[10])
    _dead_letters(state, term[11])
    state.waiting = [(key, _consumer(state, consumer)) for key, consumer in term[14]]
    return state


def _lanes(state: State, term: Any) -> Lanes | Priorities:
    """The ready messages: a queue with a length, from version 4 on {rabbit_fifo_q, high, normal, length, turn}, in 8
    {pq, queues by 31 minus the priority, length, bitmap}.
    """
    if state.version < APART:
        return Lanes(_message(state, message) for message in _listed(term))
    if state.version >= STRICT:
        return Priorities(
            {HIGHEST - bucket: [_message(state, each) for each in _listed(queue)] for bucket, queue in term[1].items()}
        )
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
    """Reads [index | header] in one of its three forms, or, in version 8, index and size in one number."""
    if isinstance(message, int) and state.version >= STRICT:
        index = message & (1 << _INDEX_BITS) - 1
        state.sizes[index] = message >> _INDEX_BITS
        return index
    items, tail = message.items, message.tail
    header = ImproperList(items[1:], tail) if len(items) == 2 else tail
    if not isinstance(items[0], int):
        raise FormatError(0, "a message of before RabbitMQ 3.10 in the snapshot, whose body only its node knows")
    state.learn(items[0], header)
    return items[0]


def _consumer(state: State, term: Any) -> Consumer:
    _, cfg, status, next_id, checked, credit, delivered = term[:7]
    is_timed = state.version >= STRICT
    held = {number: _message(state, message[1] if is_timed else message) for number, message in sorted(checked.items())}
    mode, most, serial = credit_mode_of(cfg[4])
    name = cfg[3], cfg[2]
    return Consumer(
        name, credit, mode, cfg[5] == "once", int(cfg[6]), _status(status), next_id, delivered, held, most, serial,
        prefetch_of(cfg[1]),
        int(cfg[7]) if is_timed else None,
        {number: int(message[0]) for number, message in sorted(checked.items())} if is_timed else {},
        list(term[8]) if is_timed else [],
    )  # fmt: skip


def _status(term: Any) -> Status:
    return (str(term[0]), str(term[1])) if isinstance(term, tuple) else str(term)


def _service(term: Any) -> dict[int, deque[ConsumerKey]]:
    """Reads a priority queue: {queue, in, out, length}, or {pqueue, [{-priority, queue}]}."""
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
        return _message(state, entry.tail if len(items) == 1 else ImproperList(items[1:], entry.tail))

    state.discards = deque(held(entry) for entry in _listed(discards))
    if isinstance(worker, tuple):
        checked = {number: held(entry) for number, entry in sorted(worker[3].items())}
        state.worker = DeadLetterWorker(int(worker[2]), int(worker[4]), checked)


def _delayed(state: State, term: Any) -> None:
    """Reads {delayed, {size, a tree of {[due | index], message, smaller, larger}}, the next one, keys by token}."""
    _, (_, root), following, deferred = term
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node == "nil":
            continue
        key, message, *others = node
        state.delayed.put(_message(state, message), int(key.items[0]))
        nodes += others
    if isinstance(following, tuple):
        state.delayed.first = int(following[1])
    state.delayed.deferred = {token: (int(key.items[0]), int(key.tail)) for token, key in deferred.items()}
