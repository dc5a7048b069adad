"""Consumers of a quorum queue: how they and their nodes go, and get credit. One road for all machine versions.

Source: docs/format/rabbitmq-quorum.md 10 to 10.2. How they come, and leave by themselves, is `checkout`'s; what becomes
of messages, and who is the active one, the machine's.
"""

from __future__ import annotations

from collections.abc import Collection

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.machine import Machine, give_credit
from storage_core.rabbitmq.quorum.machine.map_order import node_of, pid_key
from storage_core.rabbitmq.quorum.machine.state import FAILED, SERIALS, Consumer, ConsumerKey, Outcome

STARTS = 3
"""After so many none is left: who came back from the dead takes messages, and does not give way when it goes again."""


def add_credit(machine: Machine, now: int, key: ConsumerKey, credit: int, count: int, drain: bool) -> None:
    """Credit that a consumer gives itself; with `drain` what is not used is gone."""
    state = machine.state
    consumer = state.consumers.get(key)
    if consumer is None:
        waiting = state.take_waiting(key)
        if waiting is not None:
            waiting.credit = _left(waiting, credit, count)
            if drain and (waiting.serial or machine.drains_waiting):
                _drain(waiting)
            machine.credited(key, waiting)
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
    if consumer.has_serials:
        half = SERIALS // 2
        left = (left + half) % SERIALS - half
    return max(0, left)


def _drain(consumer: Consumer) -> None:
    consumer.advance(consumer.credit)
    consumer.credit = 0


def return_all(machine: Machine, now: int, key: ConsumerKey, consumer: Consumer, how: Outcome) -> None:
    """Everything that a consumer holds goes back."""
    for number in sorted(consumer.checked_out):
        machine.return_one(now, key, consumer, number, how)


def process_down(machine: Machine, now: int, pid: Opaque) -> None:
    """A channel that died: its consumers' messages go back, it publishes no more."""
    _take_down(machine, now, pid)
    if not machine.activates_after_each:
        machine.activate()
    machine.serve(now)


def _take_down(machine: Machine, now: int, pid: Opaque) -> None:
    """As `process_down`, without serving others after it."""
    state = machine.state
    state.publishers.pop(pid, None)
    if state.settings.single_active:
        state.waiting = [entry for entry in state.waiting if entry[1].id[1] != pid]
    for key in state.keys_where(lambda consumer: consumer.id[1] == pid):
        consumer = state.consumers.get(key)
        if consumer is not None:
            return_all(machine, now, key, consumer, FAILED)
            state.consumers.pop(key, None)
            if machine.activates_after_each:
                machine.activate()


def node_lost(machine: Machine, now: int, pid: Opaque) -> None:
    """A node that cannot be reached: all its consumers give back and are suspended."""
    state, node = machine.state, node_of(pid)
    single, waiting = state.settings.single_active, state.waiting
    for key in state.keys_where(lambda c: node_of(c.id[1]) == node and (single or c.status == "up")):
        consumer = state.consumers[key]
        if not state.credit_by_message:
            give_credit(consumer, len(consumer.checked_out))
        if not single:
            consumer.status = "suspected_down"
        return_all(machine, now, key, consumer, FAILED)
        if single:
            # Of several the last one alone waits: each is put behind those that waited before.
            state.waiting = [*waiting, (key, consumer)] if key in state.consumers else list(waiting)
            state.consumers.pop(key, None)
    if single:
        _mark_waiting(machine, node, "suspected_down")
        machine.activate()
    machine.serve(now)


def node_back(machine: Machine, now: int, node: bytes) -> None:
    """A node that is there again: its consumers take messages again."""
    state = machine.state
    for key in state.keys_where(lambda c: node_of(c.id[1]) == node and c.status != "cancelled"):
        consumer = state.consumers[key]
        consumer.status = "up"
        machine.settle_consumer(key, consumer)
    _mark_waiting(machine, node, "up")
    machine.activate()
    machine.serve(now)


def _mark_waiting(machine: Machine, node: bytes, status: str) -> None:
    state = machine.state
    state.waiting = [entry for entry in state.waiting if entry[1].status != "cancelled"]
    for _, consumer in state.waiting:
        if node_of(consumer.id[1]) == node:
            consumer.status = status
    machine.sort_waiting()


def purge_nodes(machine: Machine, now: int, nodes: list[str]) -> None:
    """Nodes that left for good: as if every process of theirs died, the last that is known first."""
    for node in nodes:
        raw = str(node).encode()
        for pid in reversed([pid for pid in machine.state.pids() if node_of(pid) == raw]):
            _take_down(machine, now, pid)


def restart(machine: Machine, now: int, watched: Collection[bytes]) -> None:
    """What a restart does: nodes that the new leader watches are back, and then all processes are gone, one after the
    other in the order of their pids.

    On a node of 4.0 and later a consumer that was giving way may come back from the dead and hold up the queue until
    the next restart. Here that follows at once.
    """
    state = machine.state
    if machine.revives_quiescing:
        giving_way = {node_of(each.id[1]) for each in state.consumers.values() if each.status == "quiescing"}
        for node in sorted(giving_way.intersection(watched)):
            node_back(machine, now, node)
    for _ in range(STARTS):
        for pid in sorted(set(state.pids()), key=pid_key):
            process_down(machine, now, pid)
