"""Consumers of a quorum queue, machine versions 2 and 3: how they come and go, who is the active one.

Source: docs/format/rabbitmq-quorum.md 10. Leaves to `machine` what becomes of messages. A consumer's key is its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.machine import Machine, give_credit
from storage_core.rabbitmq.quorum.machine.map_order import key_order, node_of, pid_key
from storage_core.rabbitmq.quorum.machine.state import Consumer, ConsumerId, ConsumerKey, State, prefetch_of

_X_PRIORITY = b"x-priority"


def priority_of(meta: Any) -> int:
    """The priority of a consumer by the meta map of its checkout."""
    args = meta.get("args") if isinstance(meta, dict) else None
    for item in args if isinstance(args, list) else ():
        if isinstance(item, tuple) and len(item) == 3 and item[0] == _X_PRIORITY and isinstance(item[2], int):
            return item[2]
    return 0


def pids_of(state: State) -> set[Opaque]:
    """Every process that the queue knows."""
    consumers = (*state.consumers.values(), *(consumer for _, consumer in state.waiting))
    return {*state.publishers, *(consumer.id[1] for consumer in consumers)}


def pids_on(state: State, node: bytes) -> list[Opaque]:
    """The processes of one node, the last that is known first; some more than once."""
    known = [
        *(state.consumers[key].id[1] for key in keys_where(state, lambda _: True)),
        *sorted(state.publishers, key=pid_key),
        *(consumer.id[1] for _, consumer in state.waiting),
    ]
    return [pid for pid in reversed(known) if node_of(pid) == node]


def taken_from(waiting: list[tuple[ConsumerKey, Consumer]], key: ConsumerKey) -> Consumer | None:
    """Takes the first entry of a key out of the line of those that wait."""
    for place, (other, consumer) in enumerate(waiting):
        if other == key:
            del waiting[place]
            return consumer
    return None


def keys_where(state: State, meant: Callable[[Consumer], bool]) -> list[ConsumerKey]:
    """The keys of some consumers, in the order in which a node goes through them."""
    return sorted((key for key, consumer in state.consumers.items() if meant(consumer)), key=key_order)


def _active(machine: Machine) -> ConsumerKey | None:
    """The one that gets messages of a queue with a single active consumer."""
    consumers = machine.state.consumers
    return next((name for name in sorted(consumers, key=key_order) if consumers[name].status == "up"), None)


def activate(machine: Machine) -> None:
    """Lets the next waiting consumer in, when none is active."""
    state = machine.state
    if not state.settings.single_active or _active(machine) is not None:
        return
    name, waiting = next(((key, other) for key, other in state.waiting if other.status == "up"), (None, None))
    if name is None or waiting is None:
        return
    # Of several entries of its key the first one goes, whichever that is, and its own may stay.
    taken_from(state.waiting, name)
    waiting = replace(waiting, checked_out=dict(waiting.checked_out))
    existing = state.consumers.get(name)
    if existing is not None:
        existing.take_over(waiting)
    state.consumers[name] = existing or waiting
    machine.line_up(name, state.consumers[name])


def check_out(machine: Machine, now: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    """A consumer that comes, changes, cancels, or fetches one message."""
    if spec == "cancel":
        cancel(machine, name)
        machine.serve(now)
    elif spec[0] == "dequeue":
        _fetch(machine, now, name, spec[1] == "settled")
    else:
        _join(machine, name, spec, meta)
        activate(machine)
        machine.serve(now)


def _join(machine: Machine, name: ConsumerId, spec: Any, meta: Any) -> None:
    state = machine.state
    life, credit, mode = spec
    existing, given = state.consumers.get(name), Consumer(name, credit, str(mode), life == "once", priority_of(meta))
    given.prefetch = prefetch_of(meta)
    if state.credit_by_message and mode == "simple_prefetch":
        given.most_credit = credit
    if state.settings.single_active:
        active = _active(machine)
        if not (active == name or (active is None and existing is not None)):
            state.waiting.append((name, given))
            return
    if existing is None:
        existing = given
    else:
        existing.take_over(given)
        existing.status, existing.credit = "up", max(0, credit - len(existing.checked_out))
    machine.settle_consumer(name, existing)


def _fetch(machine: Machine, now: int, name: ConsumerId, settled: bool) -> None:
    """One message for a consumer that is there only for it."""
    state = machine.state
    if state.settings.single_active or not machine.ready or name in state.consumers:
        return
    most = int(state.credit_by_message)
    machine.settle_consumer(name, Consumer(name, 1, "simple_prefetch", True, 0, most_credit=most))
    if not machine.deliver_one(now):
        state.consumers.pop(name, None)
    elif settled:
        machine.settle(now, name, [0])
    machine.drop_excess()


def cancel(machine: Machine, name: ConsumerId) -> None:
    """A consumer that takes no more; what it holds it keeps."""
    state = machine.state
    consumer = state.consumers.get(name)
    if consumer is None:
        if state.settings.single_active:
            taken_from(state.waiting, name)
        return
    consumer.once, consumer.credit, consumer.status = True, 0, "cancelled"
    machine.settle_consumer(name, consumer)
    activate(machine)


def add_credit(machine: Machine, now: int, name: ConsumerId, credit: int, count: int, drain: bool) -> None:
    """Credit that a consumer gives itself; with `drain` what is not used is gone."""
    state = machine.state
    consumer = state.consumers.get(name)
    if consumer is None:
        waiting = taken_from(state.waiting, name)
        if waiting is not None:
            waiting.credit = max(0, count + credit - waiting.delivery_count)
            state.waiting.insert(0, (name, waiting))
        return
    consumer.credit = max(0, count + credit - consumer.delivery_count)
    machine.line_up(name, consumer)
    machine.serve(now)
    after = state.consumers.get(name)
    if drain and after is not None:
        after.delivery_count += after.credit
        after.credit = 0


def return_all(machine: Machine, name: ConsumerKey, consumer: Consumer) -> None:
    """Everything that a consumer holds goes back."""
    for number in sorted(consumer.checked_out):
        machine.return_one(name, consumer, number)


def process_down(machine: Machine, now: int, pid: Opaque) -> None:
    """A channel that died: its consumers' messages go back, it publishes no more."""
    take_down(machine, pid)
    machine.serve(now)


def take_down(machine: Machine, pid: Opaque) -> None:
    """As `process_down`, without serving others after it."""
    state = machine.state
    state.publishers.pop(pid, None)
    if state.settings.single_active:
        state.waiting = [entry for entry in state.waiting if entry[1].id[1] != pid]
    for name in keys_where(state, lambda consumer: consumer.id[1] == pid):
        consumer = state.consumers.get(name)
        if consumer is not None:
            return_all(machine, name, consumer)
            state.consumers.pop(name, None)
            activate(machine)


def node_lost(machine: Machine, now: int, pid: Opaque) -> None:
    """A node that cannot be reached: all its consumers give back and are suspended."""
    state = machine.state
    node, waiting, single = node_of(pid), state.waiting, state.settings.single_active
    for name in keys_where(state, lambda consumer: node_of(consumer.id[1]) == node):
        consumer = state.consumers.get(name)
        if consumer is None or (not single and consumer.status != "up"):
            continue
        if not state.credit_by_message:
            give_credit(consumer, len(consumer.checked_out))
        if not single:
            consumer.status = "suspected_down"
        return_all(machine, name, consumer)
        if single:
            # Of several the last one alone waits: each is put behind those that waited before.
            state.waiting = [*waiting, (name, consumer)] if name in state.consumers else list(waiting)
            state.consumers.pop(name, None)
    _mark_waiting(machine, node, "suspected_down")
    activate(machine)
    machine.serve(now)


def node_back(machine: Machine, now: int, node: bytes) -> None:
    """A node that is there again: its consumers take messages again."""
    state = machine.state
    for name in keys_where(state, lambda consumer: node_of(consumer.id[1]) == node):
        consumer = state.consumers[name]
        if consumer.status != "cancelled":
            consumer.status = "up"
            machine.settle_consumer(name, consumer)
    _mark_waiting(machine, node, "up")
    activate(machine)
    machine.serve(now)


def _mark_waiting(machine: Machine, node: bytes, status: str) -> None:
    state = machine.state
    state.waiting = [entry for entry in state.waiting if entry[1].status != "cancelled"]
    for _, consumer in state.waiting:
        if node_of(consumer.id[1]) == node:
            consumer.status = status


def purge_nodes(machine: Machine, nodes: list[str]) -> None:
    """Nodes that left for good: as if every process of theirs died."""
    for node in nodes:
        for pid in pids_on(machine.state, str(node).encode()):
            take_down(machine, pid)


def restart(machine: Machine, now: int) -> None:
    """What a restart does: all processes are gone, one after the other in the order of their pids."""
    for pid in sorted(pids_of(machine.state), key=pid_key):
        process_down(machine, now, pid)
