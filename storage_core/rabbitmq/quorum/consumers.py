"""Consumers of a quorum queue: how they come, how they and their nodes go, who of several is the active one.

Source: docs/format/rabbitmq-quorum.md 10. Leaves to `machine` what becomes of messages.
"""

from __future__ import annotations

from typing import Any

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine import Machine, give_credit
from storage_core.rabbitmq.quorum.machine_state import Consumer, ConsumerId
from storage_core.rabbitmq.quorum.map_order import node_of, pid_key

_X_PRIORITY = b"x-priority"


def _key(name: ConsumerId) -> Any:
    return name[0], pid_key(name[1])


def _priority(meta: Any) -> int:
    args = meta.get("args") if isinstance(meta, dict) else None
    for item in args if isinstance(args, list) else ():
        if isinstance(item, tuple) and len(item) == 3 and item[0] == _X_PRIORITY and isinstance(item[2], int):
            return item[2]
    return 0


def _active(machine: Machine) -> ConsumerId | None:
    """The one that gets messages of a queue with a single active consumer."""
    consumers = machine.state.consumers
    return next((name for name in sorted(consumers, key=_key) if consumers[name].status == "up"), None)


def activate(machine: Machine) -> None:
    """Lets the next waiting consumer in, when none is active."""
    state = machine.state
    if not state.settings.single_active or _active(machine) is not None:
        return
    for place, (name, waiting) in enumerate(state.waiting):
        if waiting.status == "up":
            del state.waiting[place]
            existing = state.consumers.get(name)
            if existing is not None:
                existing.credit_mode, existing.once = waiting.credit_mode, waiting.once
                existing.priority = waiting.priority
            consumer = existing or waiting
            state.consumers[name] = consumer
            machine.line_up(name, consumer)
            return


def check_out(machine: Machine, now: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    """A consumer that comes, changes, cancels, or fetches one message."""
    if spec == "cancel":
        cancel(machine, name)
        machine.serve(now)
    elif spec[0] == "dequeue":
        _fetch(machine, now, name, spec[1] == "settled")
    else:
        _join(machine, name, spec, _priority(meta))
        activate(machine)
        machine.serve(now)


def _join(machine: Machine, name: ConsumerId, spec: Any, priority: int) -> None:
    state = machine.state
    life, credit, mode = spec
    existing = state.consumers.get(name)
    if state.settings.single_active:
        active = _active(machine)
        if not (active == name or (active is None and existing is not None)):
            state.waiting.append((name, Consumer(credit, str(mode), life == "once", priority)))
            return
    if existing is None:
        existing = Consumer(credit, str(mode), life == "once", priority)
    else:
        existing.priority, existing.credit_mode, existing.once = priority, str(mode), life == "once"
        existing.status, existing.credit = "up", max(0, credit - len(existing.checked_out))
    machine.settle_consumer(name, existing)


def _fetch(machine: Machine, now: int, name: ConsumerId, settled: bool) -> None:
    """One message for a consumer that is there only for it."""
    state = machine.state
    if state.settings.single_active or not machine.ready or name in state.consumers:
        return
    machine.settle_consumer(name, Consumer(1, "simple_prefetch", True, 0))
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
            state.waiting = [entry for entry in state.waiting if entry[0] != name]
        return
    consumer.once, consumer.credit, consumer.status = True, 0, "cancelled"
    machine.settle_consumer(name, consumer)
    activate(machine)


def add_credit(machine: Machine, now: int, name: ConsumerId, credit: int, count: int, drain: bool) -> None:
    """Credit that a consumer gives itself; with `drain` what is not used is gone."""
    state = machine.state
    consumer = state.consumers.get(name)
    if consumer is None:
        for waiting, other in state.waiting:
            if waiting == name:
                other.credit = max(0, count + credit - other.delivery_count)
        return
    consumer.credit = max(0, count + credit - consumer.delivery_count)
    machine.line_up(name, consumer)
    machine.serve(now)
    after = state.consumers.get(name)
    if drain and after is not None:
        after.delivery_count += after.credit
        after.credit = 0


def _return_all(machine: Machine, name: ConsumerId, consumer: Consumer) -> None:
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
        state.waiting = [entry for entry in state.waiting if entry[0][1] != pid]
    for name in sorted((name for name in state.consumers if name[1] == pid), key=_key):
        consumer = state.consumers.get(name)
        if consumer is not None:
            _return_all(machine, name, consumer)
            state.consumers.pop(name, None)
            activate(machine)


def node_lost(machine: Machine, now: int, pid: Opaque) -> None:
    """A node that cannot be reached: all its consumers give back and are suspended."""
    state = machine.state
    node = node_of(pid)
    for name in sorted((name for name in state.consumers if node_of(name[1]) == node), key=_key):
        consumer = state.consumers.get(name)
        if consumer is None or (not state.settings.single_active and consumer.status != "up"):
            continue
        give_credit(consumer, len(consumer.checked_out))
        if not state.settings.single_active:
            consumer.status = "suspected_down"
        _return_all(machine, name, consumer)
        if state.settings.single_active:
            if name in state.consumers:
                state.waiting.append((name, consumer))
            state.consumers.pop(name, None)
    _mark_waiting(machine, node, "suspected_down")
    activate(machine)
    machine.serve(now)


def node_back(machine: Machine, now: int, node: bytes) -> None:
    """A node that is there again: its consumers take messages again."""
    state = machine.state
    for name in sorted((name for name in state.consumers if node_of(name[1]) == node), key=_key):
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
    for name, consumer in state.waiting:
        if node_of(name[1]) == node:
            consumer.status = status


def purge_nodes(machine: Machine, nodes: list[str]) -> None:
    """Nodes that left for good: as if every process of theirs died."""
    state = machine.state
    for node in nodes:
        raw = str(node).encode()
        pids = [pid for pid in (*state.publishers, *(name[1] for name in state.consumers),
                                *(name[1] for name, _ in state.waiting)) if node_of(pid) == raw]  # fmt: skip
        for pid in dict.fromkeys(pids):
            take_down(machine, pid)


def restart(machine: Machine, now: int) -> None:
    """What a restart does: all processes are gone, one after the other in the order of their pids."""
    state = machine.state
    pids = {*state.publishers, *(name[1] for name in state.consumers), *(name[1] for name, _ in state.waiting)}
    for pid in sorted(pids, key=pid_key):
        process_down(machine, now, pid)
