"""Consumers of a quorum queue, machine version 5: how they come, how they and their nodes go.

Source: docs/format/rabbitmq-quorum.md 10.2. Leaves to `machine_v5` what becomes of messages, and who is the active one.
"""

from __future__ import annotations

from typing import Any

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.consumers import (
    keys_where,
    pids_of,
    pids_on,
    priority_of,
    return_all,
    taken_from,
)
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV5
from storage_core.rabbitmq.quorum.machine.map_order import node_of, pid_key
from storage_core.rabbitmq.quorum.machine.state import (
    SERIALS,
    Consumer,
    ConsumerId,
    ConsumerKey,
    credit_mode_of,
    prefetch_of,
)


def check_out(machine: MachineV5, now: int, index: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    """A consumer that comes, changes, cancels, is removed, or fetches one message."""
    if spec in ("cancel", "remove"):
        key = machine.key_of(name)
        if key is not None:
            leave(machine, key, spec == "cancel")
            machine.activate()
            machine.serve(now)
    elif spec[0] == "dequeue":
        _fetch(machine, now, name, spec[1] == "settled")
    else:
        _join(machine, index, name, spec, meta)
        machine.activate()
        machine.serve(now)


def _join(machine: MachineV5, index: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    priority = meta.get("priority") if isinstance(meta, dict) else None
    new = _consumer(name, spec, priority if isinstance(priority, int) else priority_of(meta))
    new.prefetch = prefetch_of(meta)
    key = machine.key_of(name)
    if key is None:
        key = index if len(spec) == 2 else name
    state = machine.state
    existing = state.consumers.get(key)
    if state.settings.single_active:
        active = machine.active()
        is_up = active is not None and state.consumers[active].status == "up"
        if not ((active == key and is_up) or (active is None and existing is not None)):
            machine.wait(key, new)
            return
    if existing is not None:
        existing.take_over(new)
        existing.status, existing.credit = "up", max(0, new.credit - len(existing.checked_out))
    machine.settle_consumer(key, existing or new)


def _consumer(name: ConsumerId, spec: Any, priority: int) -> Consumer:
    """A new one; a spec of three parts is that of a publisher of before 4.0."""
    if len(spec) == 3:
        life, number, mode = spec
        term = (mode, number) if mode == "simple_prefetch" else mode
    else:
        life, term = spec
    mode, most, serial = credit_mode_of(term)
    credit = int(term[1]) if mode == "simple_prefetch" else 0
    first = int(term[1]) if serial else 0
    return Consumer(name, credit, mode, life == "once", priority, delivery_count=first, most_credit=most, serial=serial)


def _fetch(machine: MachineV5, now: int, name: ConsumerId, settled: bool) -> None:
    """One message for a consumer that is there only for it."""
    state = machine.state
    if state.settings.single_active or not machine.ready or machine.find(name) is not None:
        return
    machine.settle_consumer(name, Consumer(name, 1, "simple_prefetch", True, 0, most_credit=1))
    if not machine.deliver_one(now):
        state.consumers.pop(name, None)
    elif settled:
        machine.settle(now, name, [0])
    machine.drop_excess()


def leave(machine: MachineV5, key: ConsumerKey, keeps: bool) -> None:
    """A consumer that takes no more: it `keeps` what it holds, or gives it back and is gone."""
    state = machine.state
    consumer = state.consumers.get(key)
    if consumer is None:
        if state.settings.single_active:
            taken_from(state.waiting, key)
    elif keeps:
        consumer.once, consumer.credit, consumer.status = True, 0, "cancelled"
        machine.settle_consumer(key, consumer)
    else:
        return_all(machine, key, consumer)
        state.consumers.pop(key, None)


def add_credit(machine: MachineV5, now: int, key: ConsumerKey, credit: int, count: int, drain: bool) -> None:
    """Credit that a consumer gives itself; with `drain` what is not used is gone."""
    state = machine.state
    consumer = state.consumers.get(key)
    if consumer is None:
        waiting = taken_from(state.waiting, key)
        if waiting is not None:
            waiting.credit = _left(waiting, credit, count)
            if drain and waiting.serial:
                _drain(waiting)
            machine.wait(key, waiting)
        return
    consumer.credit = _left(consumer, credit, count)
    machine.line_up(key, consumer)
    machine.serve(now)
    after = state.consumers.get(key)
    if drain and after is not None:
        _drain(after)


def _left(consumer: Consumer, credit: int, count: int) -> int:
    """The credit that is left of what was given after `count` deliveries."""
    left = count + credit - consumer.delivery_count
    if consumer.serial:
        half = SERIALS // 2
        left = (left + half) % SERIALS - half
    return max(0, left)


def _drain(consumer: Consumer) -> None:
    consumer.advance(consumer.credit)
    consumer.credit = 0


def take_down(machine: MachineV5, pid: Opaque) -> None:
    """A process that died: its consumers' messages go back, it publishes no more."""
    state = machine.state
    state.publishers.pop(pid, None)
    if state.settings.single_active:
        state.waiting = [entry for entry in state.waiting if entry[1].id[1] != pid]
    for key in keys_where(state, lambda consumer: consumer.id[1] == pid):
        leave(machine, key, False)


def process_down(machine: MachineV5, now: int, pid: Opaque) -> None:
    """As `take_down`, and others are served."""
    take_down(machine, pid)
    machine.activate()
    machine.serve(now)


def node_lost(machine: MachineV5, now: int, pid: Opaque) -> None:
    """A node that cannot be reached: all its consumers give back and are suspended."""
    state, node = machine.state, node_of(pid)
    single, waiting = state.settings.single_active, state.waiting
    for key in keys_where(state, lambda c: node_of(c.id[1]) == node and (single or c.status == "up")):
        consumer = state.consumers[key]
        if not single:
            consumer.status = "suspected_down"
        return_all(machine, key, consumer)
        if single:
            # Of several the last one alone waits: each is put behind those that waited before.
            state.waiting = [*waiting, (key, consumer)] if key in state.consumers else list(waiting)
            state.consumers.pop(key, None)
    if single:
        _mark_waiting(machine, node, "suspected_down")
        machine.activate()
    machine.serve(now)


def node_back(machine: MachineV5, now: int, node: bytes) -> None:
    """A node that is there again: its consumers take messages again."""
    state = machine.state
    for key in keys_where(state, lambda c: node_of(c.id[1]) == node and c.status != "cancelled"):
        consumer = state.consumers[key]
        consumer.status = "up"
        machine.settle_consumer(key, consumer)
    _mark_waiting(machine, node, "up")
    machine.activate()
    machine.serve(now)


def _mark_waiting(machine: MachineV5, node: bytes, status: str) -> None:
    state = machine.state
    state.waiting = [entry for entry in state.waiting if entry[1].status != "cancelled"]
    for _, consumer in state.waiting:
        if node_of(consumer.id[1]) == node:
            consumer.status = status
    machine.sort_waiting()


def purge_nodes(machine: MachineV5, nodes: list[str]) -> None:
    """Nodes that left for good: as if every process of theirs died."""
    for node in nodes:
        for pid in pids_on(machine.state, str(node).encode()):
            take_down(machine, pid)


def restart(machine: MachineV5, now: int) -> None:
    """What a restart does: all processes are gone, one after the other in the order of their pids.

    A consumer that was giving way, and whose last message is returned too often, comes back from the dead on a node and
    holds up the queue until the next restart. Here that follows at once.
    """
    state, before = machine.state, -1
    while (pids := pids_of(state)) and (count := len(state.consumers) + len(state.waiting)) != before:
        before = count
        for pid in sorted(pids, key=pid_key):
            process_down(machine, now, pid)
