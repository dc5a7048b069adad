"""Commands of a quorum queue's log, from decoded terms to what the machine does.

Source: docs/format/rabbitmq-quorum.md 6.2. Everything unknown has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.formats.rabbitmq.quorum.log_entry import MESSAGE_AT
from storage_core.rabbitmq.quorum.machine import checkout, consumers
from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV5
from storage_core.rabbitmq.quorum.machine.message_facts import facts_of


@dataclass(frozen=True)
class Command:
    """One command: its raft index, the leader's clock in ms, its parts (the name first), and who hears of it."""

    index: int
    time: int
    parts: tuple[Any, ...]
    reply: Any

    @classmethod
    def of(cls, index: int, term: Any) -> Command | None:
        """None for an entry that is no command of the queue."""
        if not isinstance(term, tuple) or len(term) != 4 or term[0] != "$usr" or not isinstance(term[1], dict):
            return None
        time, command = term[1].get("ts"), term[2]
        if not isinstance(time, int) or not isinstance(command, tuple) or not command:
            return None
        return cls(index, time, command, term[3])

    @property
    def message(self) -> Any:
        """The message that it holds, or None."""
        at = MESSAGE_AT.get((str(self.parts[0]), len(self.parts)))
        return None if at is None else self.parts[at]


def apply(machine: Machine, command: Command) -> None:
    """Applies one command. Raises FormatError, or what Python raises, for one that no node writes."""
    parts = command.parts
    name = str(parts[0]), len(parts)
    if isinstance(machine, MachineV5):
        later = _LATER.get(name)
        if later is not None:
            later(machine, command)
            return
    found = _COMMANDS.get(name)
    if found is not None:
        found(machine, command)


def _enqueue(machine: Machine, command: Command) -> None:
    _, publisher, sequence, message = command.parts
    machine.enqueue(command.time, command.index, publisher, sequence, facts_of(message))


def _enqueue_by_reply(machine: MachineV5, command: Command) -> None:
    """A message of whoever hears of it."""
    _, sequence, message, (_, size) = command.parts
    if not isinstance(command.reply, tuple) or len(command.reply) != 3 or command.reply[0] != "notify":
        return
    facts = replace(facts_of(message), size=int(size))
    machine.enqueue(command.time, command.index, command.reply[2], sequence, facts)


def _modify(machine: MachineV5, command: Command) -> None:
    _, key, ids, _, undeliverable, annotations = command.parts
    if undeliverable == "true":
        machine.discard(command.time, key, ids)
    elif annotations:
        raise FormatError(0, "a consumer of AMQP 1.0 annotated messages that it returned, which is not read")
    else:
        machine.give_back(command.time, key, ids)


def _requeue(machine: Machine, command: Command) -> None:
    _, name, number, _, header, _ = command.parts
    machine.requeue(command.time, command.index, name, number, header)


def _register(machine: Machine, command: Command) -> None:
    machine.state.publishers.setdefault(command.parts[1], 1)


def _down(machine: Machine, command: Command) -> None:
    _, pid, reason = command.parts
    if not isinstance(pid, Opaque):
        raise FormatError(0, "what went down is no process")
    (consumers.node_lost if reason == "noconnection" else consumers.process_down)(machine, command.time, pid)


def _timeout(machine: Machine, command: Command) -> None:
    if command.parts[1] == "expire_msgs":
        machine.serve(command.time)


_COMMANDS: dict[tuple[str, int], Callable[[Machine, Command], None]] = {
    ("enqueue", 4): _enqueue,
    ("requeue", 6): _requeue,
    ("register_enqueuer", 2): _register,
    ("settle", 3): lambda m, c: m.settle(c.time, c.parts[1], c.parts[2]),
    ("return", 3): lambda m, c: m.give_back(c.time, c.parts[1], c.parts[2]),
    ("discard", 3): lambda m, c: m.discard(c.time, c.parts[1], c.parts[2]),
    ("checkout", 4): lambda m, c: checkout.check_out(m, c.time, c.parts[1], c.parts[2], c.parts[3]),
    ("credit", 5): lambda m, c: consumers.add_credit(
        m, c.time, c.parts[1], c.parts[2], c.parts[3], c.parts[4] == "true"
    ),
    ("purge", 1): lambda m, _: m.purge(),
    ("purge_nodes", 2): lambda m, c: consumers.purge_nodes(m, c.parts[1]),
    ("update_config", 2): lambda m, c: m.configure(c.time, c.parts[1]),
    ("down", 3): _down,
    ("nodeup", 2): lambda m, c: consumers.node_back(m, c.time, str(c.parts[1]).encode()),
    ("timeout", 2): _timeout,
    ("dlx", 2): lambda m, c: m.dead_letter_command(c.time, c.parts[1]),
}

_LATER: dict[tuple[str, int], Callable[[MachineV5, Command], None]] = {
    ("e", 4): _enqueue_by_reply,
    ("modify", 6): _modify,
    ("checkout", 4): lambda m, c: checkout.check_out_v5(m, c.time, c.index, c.parts[1], c.parts[2], c.parts[3]),
}
"""Those that machine version 5 adds, or takes otherwise."""
