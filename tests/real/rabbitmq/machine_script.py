"""Random commands for the state machine of a quorum queue, and the states that the node's own module makes of them.

The module of 4.0 for versions 2 and 3 is `rabbit_fifo_v3`, that for version 5 `rabbit_fifo`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom, Opaque
from storage_core.formats.rabbitmq.message import properties
from storage_core.rabbitmq.quorum.machine.commands import Command
from storage_core.rabbitmq.quorum.machine.machine import Machine
from tests.real.rabbitmq.node import Node

NODES = (b"a@h", b"b@h")
RESOURCE = (Atom("resource"), b"/", Atom("queue"), b"q")
UNDEFINED = Atom("undefined")
RUN = """
{ok, In} = file:read_file("%s"),
{States, _} = lists:mapfoldl(
    fun({init, Module, Config}, _) -> S = Module:init(Config), {S, S};
       ({Module, Meta, Command}, State) -> S = element(1, Module:apply(Meta, Command, State)), {S, S}
    end, none, binary_to_term(In)),
ok = file:write_file("%s", term_to_binary(States)).
"""


def pid(number: int, node: bytes) -> Opaque:
    """A process of another node."""
    return Opaque(b"X" + bytes((et.SMALL_ATOM_UTF8, len(node))) + node + struct.pack(">III", number, 0, 1))


PIDS = [pid(number, node) for number in (7, 3) for node in NODES]
NAMES = [(tag, one) for tag in (b"t", b"10", b"9") for one in PIDS]


def states(node: Node, steps: list[Any], inside: str) -> list[Any]:
    """The state after each step, as the node's module has it; `inside` is what the node calls its folder."""
    (node.folder / "steps").write_bytes(et.encode(steps))
    node.eval(RUN % (f"{inside}/steps", f"{inside}/states"))
    return list(et.decode((node.folder / "states").read_bytes()))


class Script:
    """Commands at random, with what `machine` holds in view."""

    def __init__(self, seed: int | str, version: int) -> None:
        self.r, self.version = random.Random(seed), version
        self.index, self.time = 1, 1_700_000_000_000
        self.arguments = self._arguments()

    def commands(self, machine: Machine, count: int) -> Iterator[tuple[Any, Command]]:
        """Steps for the node's module, and the same for ours."""
        for _ in range(count):
            self.index += 1
            self.time += self.r.choice((0, 1, 30, 500))
            parts, reply = self._command(machine)
            yield self.step(parts, reply), Command(self.index, self.time, parts, reply)

    def step(self, parts: Any, reply: Any = None) -> Any:
        """One step for the node's module."""
        meta = {
            Atom("index"): self.index, Atom("term"): 1, Atom("system_time"): self.time,
            Atom("machine_version"): self.version, Atom("reply_mode"): reply or Atom("noreply"),
            Atom("from"): UNDEFINED,
        }  # fmt: skip
        return Atom("rabbit_fifo" if self.version == 5 else "rabbit_fifo_v3"), meta, parts

    def config(self) -> dict[Any, Any]:
        """The arguments of the queue, as the command that sets them has them."""
        return {Atom("name"): Atom("q"), Atom("queue_resource"): RESOURCE, **self.arguments}

    def _arguments(self) -> dict[Any, Any]:
        r = self.r
        return {
            Atom("max_length"): r.choice((UNDEFINED, UNDEFINED, 12)),
            Atom("max_bytes"): r.choice((UNDEFINED, UNDEFINED, 400)),
            Atom("overflow_strategy"): Atom(r.choice(("drop_head", "reject_publish"))),
            Atom("delivery_limit"): r.choice((UNDEFINED, 2, 20, -1)),
            Atom("msg_ttl"): r.choice((UNDEFINED, UNDEFINED, 900)),
            Atom("single_active_consumer_on"): r.random() < 0.4,
            Atom("dead_letter_handler"): UNDEFINED,
        }

    def _command(self, machine: Machine) -> tuple[Any, Any]:
        makers = (
            (self._publish, 14), (self._checkout, 5), (self._settling, 12), (self._credit, 2), (self._gone, 1.5),
            (self._requeue, 1), (self._rare, 1),
        )  # fmt: skip
        make = self.r.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]
        return make(machine)

    def _publish(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        one = r.choice(PIDS)
        number = machine.state.publishers.get(one, 1) + r.choice((0, 0, 0, 0, 0, 0, 1, -1))
        message, size = self._message()
        if r.random() < 0.1:
            return (Atom("enqueue"), UNDEFINED, UNDEFINED, message), None
        if self.version == 5:
            return (Atom("e"), number, message, (3, size)), (Atom("notify"), 9, one)
        return (Atom("enqueue"), one, number, message), None

    def _message(self) -> tuple[Any, int]:
        r = self.r
        body, ttl = r.randbytes(r.choice((0, 10, 90))), r.choice((None, None, None, 0, 40, 3000))
        if self.version == 5:
            content = (Atom("content"), 60, Atom("none"), b"\0\0", Atom("rabbit_framing_amqp_0_9_1"), [body])
            noted = {
                Atom("ttl"): ttl,
                Atom("p"): r.choice((None, 4, 5)),
                Atom("delivery_count"): r.choice((None, None, 3)),
            }
            annotations = {key: value for key, value in noted.items() if value is not None}
            return (Atom("mc"), Atom("mc_amqpl"), content, {**annotations, Atom("x"): b"", Atom("rk"): [b"q"]}), len(
                body
            )
        values = {"expiration": None if ttl is None else str(ttl).encode()}
        decoded = (Atom("P_basic"), *(values.get(name) or UNDEFINED for name, _ in properties.FIELDS))
        content = (Atom("content"), 60, decoded, Atom("none"), Atom("none"), [body])
        exchange = (Atom("resource"), b"/", Atom("exchange"), b"")
        return (Atom("basic_message"), exchange, [b"q"], content, b"", False), len(body)

    def _checkout(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        number = r.choice((0, 1, 3, 8))
        meta = {
            Atom("ack"): True, Atom("prefetch"): number, Atom("username"): b"guest",
            Atom("args"): [(b"x-priority", Atom("long"), r.randrange(-1, 3))] if r.random() < 0.5 else [],
        }  # fmt: skip
        life = Atom(r.choice(("auto", "auto", "auto", "once")))
        older = r.choice(((life, number, Atom("simple_prefetch")), (life, number, Atom("credited"))))
        later = (life, (Atom("simple_prefetch"), number)), (life, (Atom("credited"), r.choice((0, (1 << 32) - 2))))
        join = r.choice((*later, *later, older)) if self.version == 5 else older
        left = ("cancel", "remove") if self.version == 5 else ("cancel",)
        leave = Atom(r.choice(left))
        fetch = Atom("dequeue"), Atom(r.choice(("settled", "unsettled")))
        spec = r.choices((join, leave, fetch), (6, 2, 3))[0]
        return (Atom("checkout"), r.choice(NAMES), spec, {} if spec == fetch else meta), None

    def _keys(self, machine: Machine) -> list[Any]:
        return [*machine.state.consumers, *machine.state.consumers, self.r.choice(NAMES)]

    def _settling(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        key = r.choice(self._keys(machine))
        consumer = machine.state.consumers.get(key)
        held = [*consumer.checked_out] if consumer else []
        ids = r.sample(held, r.randint(0, len(held))) or [r.randrange(9)]
        if consumer is not None and r.random() < 0.2:
            key = consumer.id
        names = ["settle", "settle", "return", "discard"]
        if self.version == 5 and r.random() < 0.2:
            return (Atom("modify"), key, ids, r.random() < 0.5, r.random() < 0.3, {}), None
        return (Atom(r.choice(names)), key, ids), None

    def _credit(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        waiting = [key for key, _ in machine.state.waiting]
        key = r.choice([*self._keys(machine), *waiting])
        known = {**machine.state.consumers, **dict(machine.state.waiting)}
        count = known[key].delivery_count if key in known else 0
        return (Atom("credit"), key, r.choice((0, 1, 5)), max(0, count - r.choice((0, 0, 1))), r.random() < 0.3), None

    def _gone(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        node = Atom(r.choice(NODES).decode())
        reason = Atom(r.choice(("noproc", "normal", "noconnection")))
        return r.choice(
            ((Atom("down"), r.choice(PIDS), reason), (Atom("nodeup"), node), (Atom("nodedown"), node))
        ), None

    def _requeue(self, machine: Machine) -> tuple[Any, Any]:
        state = machine.state
        holding = [key for key, consumer in state.consumers.items() if consumer.checked_out]
        if not holding:
            return (Atom("garbage_collection"),), None
        key = self.r.choice(holding)
        number, index = self.r.choice([*state.consumers[key].checked_out.items()])
        header: dict[Any, Any] = {Atom("size"): machine.size(index)}
        counted = "acquired_count" if self.version == 5 else "delivery_count"
        for name, values in (("expiry", state.expiries), (counted, state.counts)):
            if index in values:
                header[Atom(name)] = values[index]
        return (Atom("requeue"), key, number, index, header, self._message()[0]), None

    def _rare(self, machine: Machine) -> tuple[Any, Any]:
        r = self.r
        if r.random() < 0.2:
            self.arguments = {
                **self._arguments(),
                Atom("single_active_consumer_on"): machine.state.settings.single_active,
            }
        made: tuple[Any, ...] = (
            (Atom("purge"),), (Atom("purge_nodes"), [Atom(r.choice(NODES).decode())]),
            (Atom("update_config"), self.config()), (Atom("timeout"), Atom("expire_msgs")),
            (Atom("register_enqueuer"), r.choice(PIDS)),
        )  # fmt: skip
        return r.choice(made), None
