"""Consumers of a quorum queue of machine version 8 that cannot be reached, come back, or are late.

Source: docs/format/rabbitmq-quorum.md 10.4. Up to version 7 `consumers` handles lost nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.consumers import return_all
from storage_core.rabbitmq.quorum.machine.machine_v8 import LATE, SUSPECTED, MachineV8
from storage_core.rabbitmq.quorum.machine.map_order import node_of
from storage_core.rabbitmq.quorum.machine.state import RETURNED, Consumer, ConsumerKey


def process_lost(machine: MachineV8, now: int, pid: Opaque) -> None:
    """Handles a process that cannot be reached: its consumers keep the messages they hold, and get no more."""
    for consumer in machine.state.consumers.values():
        if consumer.id[1] == pid:
            _suspect(consumer)
    _change_waiting(machine, lambda consumer: consumer.id[1] == pid, _suspect)
    machine.serve(now)


def node_back(machine: MachineV8, now: int, node: bytes) -> None:
    """Handles a node that is back: its consumers receive messages again."""
    state = machine.state
    for key in state.keys_where(lambda one: node_of(one.id[1]) == node and one.away == SUSPECTED):
        _back(state.consumers[key])
        machine.settle_consumer(key, state.consumers[key])
    _change_waiting(machine, lambda consumer: node_of(consumer.id[1]) == node, _back)
    machine.activate()
    machine.serve(now)


def give_up(machine: MachineV8, now: int, key: ConsumerKey) -> None:
    """Handles a consumer that could not be reached for too long: the messages it holds are returned."""
    state = machine.state
    consumer = state.consumers.get(key)
    if consumer is None or consumer.away != SUSPECTED:
        return
    before = consumer.status[1]
    return_all(machine, now, key, consumer, RETURNED)
    if state.settings.single_active:
        left = state.consumers.pop(key, None)
        if left is not None and before != "cancelled":
            left.status = SUSPECTED, "up"
            state.waiting.append((key, left))
        machine.activate()
    machine.serve(now)


def end_deadlines(machine: MachineV8, now: int) -> None:
    """Returns messages that were not settled in time. Their consumers get no more until they answer."""
    state = machine.state
    for key in state.keys_where(lambda consumer: any(now >= until for until in consumer.deadlines.values())):
        consumer = state.consumers[key]
        late = sorted(number for number, until in consumer.deadlines.items() if now >= until)
        consumer.overdue = sorted([*consumer.overdue, *late])
        if isinstance(consumer.status, str):
            consumer.status = LATE, consumer.status
        for number in late:
            machine.return_one(now, key, consumer, number, RETURNED)
    if state.settings.single_active:
        for key in state.keys_where(lambda consumer: isinstance(consumer.status, tuple) and not consumer.checked_out):
            machine.wait(key, state.consumers.pop(key))
    machine.activate()
    machine.serve(now)


def _suspect(consumer: Consumer) -> None:
    status = consumer.status
    if isinstance(status, str):
        consumer.status = SUSPECTED, status
    else:
        # If the consumer is suspected already, a node forgets its earlier status.
        consumer.status = (SUSPECTED, status[1]) if status[0] == LATE else SUSPECTED


def _back(consumer: Consumer) -> None:
    if isinstance(consumer.status, str):
        consumer.status = "up"
    else:
        consumer.status = (LATE, consumer.status[1]) if consumer.overdue else consumer.status[1]


def _change_waiting(
    machine: MachineV8, meant: Callable[[Consumer], bool], change: Callable[[Consumer], None]
) -> None:  # fmt: skip
    """Changes some of the waiting consumers; removes those that are cancelled."""
    state = machine.state
    state.waiting = [entry for entry in state.waiting if entry[1].status != "cancelled"]
    for _, consumer in state.waiting:
        if meant(consumer):
            change(consumer)
    machine.sort_waiting()
