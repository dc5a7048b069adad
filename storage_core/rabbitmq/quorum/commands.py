"""Commands of a quorum queue's log, from decoded terms to what the machine does.

Source: docs/format/rabbitmq-quorum.md 6.2. Everything unknown has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.formats.rabbitmq.message import properties
from storage_core.rabbitmq.quorum import consumers
from storage_core.rabbitmq.quorum.machine import Machine

_EXPIRATION = 1 + [name for name, _ in properties.FIELDS].index("expiration")


@dataclass(frozen=True)
class MessageFacts:
    """What the machine looks at in a message: the size of its body, and its own time to live in ms."""

    size: int
    ttl: int | None


@dataclass(frozen=True)
class Command:
    """One command: its raft index, the leader's clock in ms, its parts (the name first)."""

    index: int
    time: int
    parts: tuple[Any, ...]

    @classmethod
    def of(cls, index: int, term: Any) -> Command | None:
        """None for an entry that is no command of the queue."""
        if not isinstance(term, tuple) or len(term) != 4 or term[0] != "$usr" or not isinstance(term[1], dict):
            return None
        time, command = term[1].get("ts"), term[2]
        if not isinstance(time, int) or not isinstance(command, tuple) or not command:
            return None
        return cls(index, time, command)

    @property
    def carries_message(self) -> bool:
        """Whether the entry holds a message."""
        return (self.parts[0], len(self.parts)) in {("enqueue", 4), ("requeue", 6)}

    @property
    def message_size(self) -> int:
        """Size of the body of its message."""
        return facts_of(self.parts[-1]).size


def message_facts(term: bytes) -> MessageFacts:
    """The facts of an encoded message; none of one that cannot be decoded, which a read tells."""
    try:
        return facts_of(et.decode(term))
    except FormatError:
        return MessageFacts(0, None)


def facts_of(message: Any) -> MessageFacts:
    """The facts of a decoded message; a node counts 0 bytes of what is none."""
    if not isinstance(message, tuple) or len(message) != 6 or message[0] != "basic_message":
        return MessageFacts(len(message) if isinstance(message, bytes) else 0, None)
    content = message[3]
    if not isinstance(content, tuple) or len(content) != 6 or not isinstance(content[5], list):
        return MessageFacts(0, None)
    size = sum(len(fragment) for fragment in content[5] if isinstance(fragment, bytes))
    decoded = content[2]
    text = decoded[_EXPIRATION] if isinstance(decoded, tuple) and len(decoded) > _EXPIRATION else None
    ttl = int(text) if isinstance(text, bytes) and text.isdigit() else None
    return MessageFacts(size, ttl)


def apply(machine: Machine, command: Command) -> None:
    """Applies one command. Raises FormatError, or what Python raises, for one that no node writes."""
    parts = command.parts
    found = _COMMANDS.get((str(parts[0]), len(parts)))
    if found is not None:
        found(machine, command)


def _enqueue(machine: Machine, command: Command) -> None:
    _, publisher, sequence, message = command.parts
    facts = facts_of(message)
    machine.enqueue(command.time, command.index, publisher, sequence, facts.ttl, facts.size)


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
    ("checkout", 4): lambda m, c: consumers.check_out(m, c.time, c.parts[1], c.parts[2], c.parts[3]),
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
