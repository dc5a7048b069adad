"""Applies the commands of a quorum queue's log, which are decoded terms, to the machine.

Source: docs/format/rabbitmq-quorum.md 6.2. Unknown commands have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.formats.rabbitmq.quorum.log_entry import MESSAGE_AT
from storage_core.rabbitmq.quorum.machine import absence, checkout, consumers, dead_letters
from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV5
from storage_core.rabbitmq.quorum.machine.machine_v8 import MachineV8
from storage_core.rabbitmq.quorum.machine.message_facts import MessageFacts, facts_of
from storage_core.rabbitmq.quorum.machine.state import Outcome


@dataclass(frozen=True)
class Command:
    """One command: its raft index, the leader's clock in ms, its parts (name first), and its reply mode."""

    index: int
    time: int
    parts: tuple[Any, ...]
    reply: Any

    @classmethod
    def of(cls, index: int, term: Any) -> Command | None:
        """The command in the term of an entry; None if the entry is not a command of the queue."""
        if not isinstance(term, tuple) or len(term) != 4 or term[0] != "$usr" or not isinstance(term[1], dict):
            return None
        time, command = term[1].get("ts"), term[2]
        if not isinstance(time, int) or not isinstance(command, tuple) or not command:
            return None
        return cls(index, time, command, term[3])

    @property
    def message(self) -> Any:
        """The message that the command holds, or None."""
        at = MESSAGE_AT.get((str(self.parts[0]), len(self.parts)))
        return None if at is None else self.parts[at]


def apply(machine: Machine, command: Command) -> None:
    """Applies one command. Raises FormatError or a built-in Python exception for one that no node writes."""
    parts = command.parts
    name = str(parts[0]), len(parts)
    if isinstance(machine, MachineV8) and name in _OF_8:
        _OF_8[name](machine, command)
    elif isinstance(machine, MachineV5) and name in _FROM_4_ON:
        _FROM_4_ON[name](machine, command)
    elif name in _COMMANDS:
        _COMMANDS[name](machine, command)


def facts_for(command: Command) -> MessageFacts:
    """The facts of the message of a command that has one, with the sizes that the command states, if any."""
    facts = facts_of(command.message)
    if command.parts[0] != "e":
        return facts
    metadata, size = command.parts[3]
    return replace(facts, size=int(size), metadata=int(metadata))


def _enqueue(machine: Machine, command: Command) -> None:
    _, publisher, sequence, _ = command.parts
    machine.enqueue(command.time, command.index, publisher, sequence, facts_for(command))


def _enqueue_by_reply(machine: MachineV5, command: Command) -> None:
    """Enqueues a message whose publisher is in the reply mode. Without a publisher, only version 8 accepts it."""
    publisher: Any = "undefined"
    if isinstance(command.reply, tuple) and len(command.reply) == 3 and command.reply[0] == "notify":
        publisher = command.reply[2]
    elif not isinstance(machine, MachineV8):
        return
    machine.enqueue(command.time, command.index, publisher, command.parts[1], facts_for(command))


def _modify(machine: MachineV5, command: Command) -> None:
    _, key, ids, failed, undeliverable, annotations = command.parts
    how = Outcome(failed == "true", annotations)
    (machine.discard if undeliverable == "true" else machine.give_back)(command.time, key, ids, how)


def _requeue(machine: Machine, command: Command) -> None:
    _, name, number, _, header, _ = command.parts
    machine.requeue(command.time, command.index, name, number, header)


def _register(machine: Machine, command: Command) -> None:
    machine.state.publishers.setdefault(command.parts[1], 1)


def _down(machine: Machine, command: Command) -> None:
    _, pid, reason = command.parts
    if not isinstance(pid, Opaque):
        raise FormatError(0, "what went down is not a process")
    (consumers.node_lost if reason == "noconnection" else consumers.process_down)(machine, command.time, pid)


def _timeout(machine: Machine, command: Command) -> None:
    if command.parts[1] == "expire_msgs":
        machine.serve(command.time)


def _down_8(machine: MachineV8, command: Command) -> None:
    _, pid, reason = command.parts
    if reason == "noconnection" and isinstance(pid, Opaque):
        absence.process_lost(machine, command.time, pid)
    else:
        _down(machine, command)


def _timeout_8(machine: MachineV8, command: Command) -> None:
    what, *of = command.parts[1] if isinstance(command.parts[1], tuple) else (command.parts[1],)
    if what == "expire_msgs" and of in ([], ["shallow"]):
        machine.wake(command.time)
    elif what == "consumer_disconnected_timeout" and of:
        absence.give_up(machine, command.time, of[0])
    elif what == "evaluate_consumer_timeout" and not of:
        absence.end_deadlines(machine, command.time)


def _delayed_8(machine: MachineV8, command: Command) -> None:
    what, *of = command.parts[1]
    if what == "retry":
        machine.retry(command.time, None if of[0] == "all" else int(of[0]))
    elif what == "assign_deferred":
        machine.assign(command.time, *of)


_COMMANDS: dict[tuple[str, int], Callable[[Machine, Command], None]] = {
    ("enqueue", 4): _enqueue,
    ("requeue", 6): _requeue,
    ("register_enqueuer", 2): _register,
    ("settle", 3): lambda m, c: m.settle(c.time, c.parts[1], c.parts[2]),
    ("return", 3): lambda m, c: m.give_back(c.time, c.parts[1], c.parts[2]),
    ("discard", 3): lambda m, c: m.reject(c.time, c.parts[1], c.parts[2]),
    ("checkout", 4): lambda m, c: checkout.check_out(m, c.time, c.parts[1], c.parts[2], c.parts[3]),
    ("credit", 5): lambda m, c: consumers.add_credit(
        m, c.time, c.parts[1], c.parts[2], c.parts[3], c.parts[4] == "true"
    ),
    ("purge", 1): lambda m, _: m.purge(),
    ("purge_nodes", 2): lambda m, c: consumers.purge_nodes(m, c.time, c.parts[1]),
    ("update_config", 2): lambda m, c: m.configure(c.time, c.parts[1]),
    ("down", 3): _down,
    ("nodeup", 2): lambda m, c: consumers.node_back(m, c.time, str(c.parts[1]).encode()),
    ("timeout", 2): _timeout,
    ("dlx", 2): lambda m, c: dead_letters.apply(m, c.time, c.parts[1]),
}

_FROM_4_ON: dict[tuple[str, int], Callable[[MachineV5, Command], None]] = {
    ("e", 4): _enqueue_by_reply,
    ("modify", 6): _modify,
    ("checkout", 4): lambda m, c: checkout.check_out_v5(m, c.time, c.index, c.parts[1], c.parts[2], c.parts[3]),
}
"""Commands that machine version 4 adds, or handles differently."""

_OF_8: dict[tuple[str, int], Callable[[MachineV8, Command], None]] = {
    ("down", 3): _down_8,
    ("nodeup", 2): lambda m, c: absence.node_back(m, c.time, str(c.parts[1]).encode()),
    ("timeout", 2): _timeout_8,
    ("delayed_cmd", 2): _delayed_8,
}
"""Commands that machine version 8 adds, or handles differently."""
