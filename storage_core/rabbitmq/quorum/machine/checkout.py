"""How consumers of a quorum queue subscribe, change and leave of their own accord, by machine version.

Source: docs/format/rabbitmq-quorum.md 10 to 10.2. How they are lost belongs to `consumers`.
"""

from __future__ import annotations

from typing import Any

from storage_core.rabbitmq.quorum.machine.consumers import return_all
from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV5
from storage_core.rabbitmq.quorum.machine.state import (
    RETURNED,
    Consumer,
    ConsumerId,
    ConsumerKey,
    credit_mode_of,
    prefetch_of,
)

_X_PRIORITY = b"x-priority"


def check_out(machine: Machine, now: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    """Lets a consumer subscribe, change, cancel, or fetch one message, up to version 3. Its key is its id."""
    if spec == "cancel":
        is_there = name in machine.state.consumers
        _leave(machine, now, name, True)
        if is_there:
            machine.activate()
        machine.serve(now)
    elif spec[0] == "dequeue":
        _fetch(machine, now, name, spec[1] == "settled", meta)
    else:
        life, credit, mode = spec
        new = Consumer(name, credit, str(mode), life == "once", _priority_of(meta), prefetch=prefetch_of(meta))
        if machine.state.credit_by_message and mode == "simple_prefetch":
            new.most_credit = credit
        _join(machine, now, name, new)


def check_out_v5(machine: MachineV5, now: int, index: int, name: ConsumerId, spec: Any, meta: Any) -> None:
    """Lets a consumer subscribe, change, cancel, be removed, or fetch one message, from version 4 on."""
    key = machine.key_of(name)
    if spec in ("cancel", "remove"):
        if key is not None:
            _leave(machine, now, key, spec == "cancel")
            machine.activate()
            machine.serve(now)
    elif spec[0] == "dequeue":
        _fetch(machine, now, name, spec[1] == "settled", meta)
    else:
        if key is None:
            key = index if len(spec) == 2 else name
        _join(machine, now, key, _new_v5(name, spec, meta, machine.timeout_of(meta)))


def _new_v5(name: ConsumerId, spec: Any, meta: Any, timeout: int | None) -> Consumer:
    """A consumer from version 4 on; a spec of three parts comes from a client older than 4.0."""
    life, term = spec if len(spec) == 2 else (spec[0], _mode_of(*spec[1:]))
    mode, most, serial = credit_mode_of(term)
    credit = int(term[1]) if mode == "simple_prefetch" else 0
    priority = meta.get("priority") if isinstance(meta, dict) else None
    return Consumer(
        name, credit, mode, life == "once", priority if isinstance(priority, int) else _priority_of(meta),
        delivery_count=int(term[1]) if serial else 0, most_credit=most, serial=serial, prefetch=prefetch_of(meta),
        timeout=timeout,
    )  # fmt: skip


def _mode_of(number: Any, mode: Any) -> Any:
    return (mode, number) if mode == "simple_prefetch" else mode


def _join(machine: Machine, now: int, key: ConsumerKey, new: Consumer) -> None:
    """Adds a consumer, or changes the terms of an existing one."""
    state = machine.state
    existing = state.consumers.get(key)
    if state.settings.single_active and not _has_turn(machine, key):
        machine.wait(key, new)
    else:
        if existing is not None:
            existing.take_over(new)
            existing.status, existing.credit = "up", max(0, new.credit - len(existing.checked_out))
        machine.settle_consumer(key, existing or new)
    machine.activate()
    machine.serve(now)


def _has_turn(machine: Machine, key: ConsumerKey) -> bool:
    """Whether the consumer exists, and is the active one or none is active."""
    existing, active = machine.state.consumers.get(key), machine.active()
    return existing is not None and (active is None or (active == key and existing.status == "up"))


def _fetch(machine: Machine, now: int, name: ConsumerId, settled: bool, meta: Any) -> None:
    """Delivers one message to a consumer that exists only for it."""
    state = machine.state
    if state.settings.single_active or not machine.ready or machine.find(name) is not None:
        return
    most = int(state.credit_by_message)
    once = Consumer(name, 1, "simple_prefetch", True, 0, most_credit=most, timeout=machine.timeout_of(meta))
    machine.settle_consumer(name, once)
    if not machine.deliver_one(now):
        state.consumers.pop(name, None)
    elif settled:
        machine.settle(now, name, [0])
    machine.drop_excess()


def _leave(machine: Machine, now: int, key: ConsumerKey, keeps: bool) -> None:
    """Ends a consumer: with `keeps` it keeps the messages it holds, otherwise it returns them and is removed."""
    state = machine.state
    consumer = state.consumers.get(key)
    if consumer is None:
        if state.settings.single_active:
            state.take_waiting(key)
    elif keeps:
        consumer.once, consumer.credit, consumer.status = True, 0, "cancelled"
        machine.settle_consumer(key, consumer)
    else:
        return_all(machine, now, key, consumer, RETURNED)
        state.consumers.pop(key, None)


def _priority_of(meta: Any) -> int:
    """The priority of a consumer from the meta map of its checkout."""
    args = meta.get("args") if isinstance(meta, dict) else None
    for item in args if isinstance(args, list) else ():
        if isinstance(item, tuple) and len(item) == 3 and item[0] == _X_PRIORITY and isinstance(item[2], int):
            return item[2]
    return 0
