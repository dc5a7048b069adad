"""Consumers of a quorum queue: how they and their nodes are lost, and how they get credit, for all machine versions.

Source: docs/format/rabbitmq-quorum.md 10 to 10.2. How they subscribe, and leave of their own accord, belongs to
`checkout`; what happens to messages, and which consumer is active, to the machine.
"""

from __future__ import annotations

from collections.abc import Collection

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.machine import Machine, give_credit
from storage_core.rabbitmq.quorum.machine.map_order import node_of, pid_key
from storage_core.rabbitmq.quorum.machine.state import FAILED, SERIALS, Consumer, ConsumerKey, Outcome

STARTS = 3
"""After this many no process is left: a consumer that came back from the dead takes messages, and does not give way
when it dies again.
"""


def add_credit(machine: Machine, now: int, key: ConsumerKey, credit: int, count: int, drain: bool) -> None:
    """Applies credit that a consumer grants; with `drain`, unused credit is discarded."""
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
    if drain and after is not None and after.credit:
        _drain(after)


def _left(consumer: Consumer, credit: int, count: int) -> int:
    """The credit that remains of what was granted after `count` deliveries."""
    left = count + credit - consumer.delivery_count
    if consumer.has_serials:
        half = SERIALS // 2
        left = (left + half) % SERIALS - half
    return max(0, left)


def _drain(consumer: Consumer) -> None:
    consumer.advance(consumer.credit)
    consumer.credit = 0


def return_all(machine: Machine, now: int, key: ConsumerKey, consumer: Consumer, how: Outcome) -> None:
    """Returns all messages that a consumer holds."""
    for number in sorted(consumer.checked_out):
        machine.return_one(now, key, consumer, number, how)


def process_down(machine: Machine, now: int, pid: Opaque) -> None:
    """Handles a channel that died: its consumers' messages are returned, and it is no longer a publisher."""
    _take_down(machine, now, pid)
    if not machine.activates_after_each:
        machine.activate()
    machine.serve(now)


def _take_down(machine: Machine, now: int, pid: Opaque) -> None:
    """Like `process_down`, but does not serve other consumers afterwards."""
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
    """Handles a node that cannot be reached: all its consumers return their messages and are suspended."""
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
            # Of several only the last one waits: each is appended to those that waited before.
            state.waiting = [*waiting, (key, consumer)] if key in state.consumers else list(waiting)
            state.consumers.pop(key, None)
    if single:
        _mark_waiting(machine, node, "suspected_down")
        machine.activate()
    machine.serve(now)


def node_back(machine: Machine, now: int, node: bytes) -> None:
    """Handles a node that is back: its consumers receive messages again."""
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
    """Handles nodes that left for good, as if each of their processes died, the last known one first."""
    for node in nodes:
        raw = str(node).encode()
        for pid in reversed([pid for pid in machine.state.pids() if node_of(pid) == raw]):
            _take_down(machine, now, pid)


def restart(machine: Machine, now: int, watched: Collection[bytes]) -> None:
    """Applies a restart: nodes that the new leader watches come back, and then all processes go down, one after the
    other in the order of their pids.

    On a node of 4.0 and later a consumer that was giving way may come back from the dead and block the queue until the
    next restart. Here that restart follows at once.
    """
    state = machine.state
    if machine.revives_quiescing:
        giving_way = {node_of(each.id[1]) for each in state.consumers.values() if each.status == "quiescing"}
        for node in sorted(giving_way.intersection(watched)):
            node_back(machine, now, node)
    for _ in range(STARTS):
        for pid in sorted(set(state.pids()), key=pid_key):
            process_down(machine, now, pid)
