"""Random commands for the state machine of a quorum queue, and the states that the node's own module computes.

A node has a module for each range of versions: `rabbit_fifo_v3` for 2 and 3; `rabbit_fifo` for 5 in 4.0, and for 8 in
4.3, which has `rabbit_fifo_v7` for 5 to 7.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom, Opaque
from storage_core.rabbitmq.quorum.machine.commands import Command
from storage_core.rabbitmq.quorum.machine.machine import Machine
from tests.real.rabbitmq.node import Node

NODES = (b"a@h", b"b@h")
RESOURCE = (Atom("resource"), b"/", Atom("queue"), b"q")
UNDEFINED = Atom("undefined")
AT_MOST_ONCE = Atom("at_most_once"), (Atom("module"), Atom("function"), [])
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
TOKENS = [b"one", b"two", b"three"]
NAMES = [(tag, one) for tag in (b"t", b"10", b"9") for one in PIDS]


def states(node: Node, steps: list[Any], inside: str) -> list[Any]:
    """The state after each step, as the node's module computes it; `inside` is the path of its folder on the node."""
    (node.folder / "steps").write_bytes(et.encode(steps))
    node.eval(RUN % (f"{inside}/steps", f"{inside}/states"))
    return list(et.decode((node.folder / "states").read_bytes()))


class Script:
    """Random commands that take the state of a machine into account."""

    def __init__(self, seed: int | str, version: int, modules: dict[int, str]) -> None:
        self.r, self.version, self._modules = random.Random(seed), version, modules
        self.index, self.time = 1, 1_700_000_000_000
        # A node that drops heads while messages are delayed never terminates.
        self.delays = self.r.random() < 0.6
        self.arguments = self._arguments()

    def commands(self, machine: Machine, count: int) -> Iterator[tuple[Any, Command]]:
        """Steps for the node's module, each with the same command for ours."""
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
        return self.module, meta, parts

    @property
    def module(self) -> Atom:
        """The node's module for the version."""
        return Atom(self._modules[self.version])

    def config(self) -> dict[Any, Any]:
        """The arguments of the queue, as in the command that sets them."""
        return {Atom("name"): Atom("q"), Atom("queue_resource"): RESOURCE, **self.arguments}

    def _arguments(self) -> dict[Any, Any]:
        r = self.r
        retry = Atom(r.choice(("all", "failed", "returned"))), 20, 300
        is_delayed = self.version == 8 and self.delays and r.random() < 0.7
        overflow = "reject_publish" if self.delays else r.choice(("drop_head", "reject_publish"))
        # A node that drops heads is never configured to publish dead letters at least once.
        at_least_once = (Atom("at_least_once"),) * (overflow == "reject_publish")
        return {
            Atom("delayed_retry"): retry if is_delayed else Atom("disabled"),
            Atom("max_length"): r.choice((UNDEFINED, UNDEFINED, 12)),
            Atom("max_bytes"): r.choice((UNDEFINED, UNDEFINED, 400)),
            Atom("overflow_strategy"): Atom(overflow),
            Atom("delivery_limit"): r.choice((UNDEFINED, 2, 20, -1)),
            Atom("msg_ttl"): r.choice((UNDEFINED, UNDEFINED, 900)),
            Atom("single_active_consumer_on"): r.random() < 0.4,
            Atom("dead_letter_handler"): r.choice((UNDEFINED, AT_MOST_ONCE, *at_least_once)),
        }

    def _command(self, machine: Machine) -> tuple[Any, Any]:
        makers = (
            (self._publish, 14), (self._checkout, 5), (self._settling, 12), (self._credit, 2), (self._gone, 1.5),
            (self._requeue, 1), (self._rare, 1), (self._dead_letters, 2), (self._of_8, 2 * (self.version == 8)),
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
        if self.version >= 4:
            return (Atom("e"), number, message, (3, size)), (Atom("notify"), 9, one)
        return (Atom("enqueue"), one, number, message), None

    def _message(self) -> tuple[Any, int]:
        r = self.r
        body, ttl = r.randbytes(r.choice((0, 10, 90))), r.choice((None, None, None, 0, 40, 3000))
        if self.version >= 4:
            content = (Atom("content"), 60, Atom("none"), b"\0\0", Atom("rabbit_framing_amqp_0_9_1"), [body])
            noted = {
                Atom("ttl"): ttl,
                Atom("p"): r.choice((None, 4, 5, 0, 9, 255)),
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
        if self.version == 8 and r.random() < 0.5:
            meta[Atom("timeout")] = r.choice((100, 1000))
        life = Atom(r.choice(("auto", "auto", "auto", "once")))
        modes = ("simple_prefetch",) if self.version == 8 else ("simple_prefetch", "credited")
        older = life, number, Atom(r.choice(modes))
        later = (life, (Atom("simple_prefetch"), number)), (life, (Atom("credited"), r.choice((0, (1 << 32) - 2))))
        join = r.choice((*later, *later, older)) if self.version >= 4 else older
        left = ("cancel", "remove") if self.version >= 4 else ("cancel",)
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
        if self.version >= 4 and r.random() < 0.2:
            return (Atom("modify"), key, ids, r.random() < 0.5, r.random() < 0.3, self._annotations()), None
        return (Atom(r.choice(names)), key, ids), None

    def _annotations(self) -> dict[bytes, Any]:
        """The annotations that a consumer adds to messages that it returns."""
        r = self.r
        noted = {
            b"x-opt-text": r.choice((None, b"a", b"b", True)), b"x-opt-number": r.choice((None, None, r.randrange(5))),
            b"x-opt-delivery-time": r.choice((None, self.time + r.randrange(-9, 900 if self.delays else 0))),
            b"x-opt-deferral-token": r.choice((None, None, 3, *TOKENS)),
        }  # fmt: skip
        return {key: value for key, value in noted.items() if value is not None} if r.random() < 0.5 else {}

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
        if index in state.annotations:
            header[Atom("anns")] = {
                key: value == "true" if value in ("true", "false") else value
                for key, value in state.annotations[index].items()
            }
        counted = "acquired_count" if self.version >= 4 else "delivery_count"
        for name, values in (("expiry", state.expiries), (counted, state.counts), ("delivery_count", state.failures)):
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

    def _dead_letters(self, machine: Machine) -> tuple[Any, Any]:
        """A worker checks out, or has published some of the messages that it holds."""
        r, worker = self.r, machine.state.worker
        if r.random() < 0.3:
            return (Atom("dlx"), (Atom("checkout"), r.choice(PIDS), r.choice((1, 3, 8)))), None
        held = [*worker.checked_out] if worker is not None else []
        ids = r.sample(held, r.randint(0, len(held))) or [r.randrange(9)]
        return (Atom("dlx"), (Atom("settle"), ids)), None

    def _of_8(self, machine: Machine) -> tuple[Any, Any]:
        """A command that only version 8 supports."""
        r, state = self.r, machine.state
        away = [key for key, consumer in state.consumers.items() if consumer.away]
        made: tuple[Any, ...] = (
            (Atom("timeout"), Atom("expire_msgs")), (Atom("timeout"), (Atom("expire_msgs"), Atom("shallow"))),
            (Atom("timeout"), Atom("evaluate_consumer_timeout")), (Atom("timeout"), Atom("evaluate_consumer_timeout")),
            (Atom("timeout"), (Atom("consumer_disconnected_timeout"), r.choice([*away, *state.consumers, 1]))),
            (Atom("timeout"), (Atom("consumer_disconnected_timeout"), r.choice([*away, *state.consumers, 1]))),
            (Atom("delayed_cmd"), (Atom("retry"), r.choice((Atom("all"), 0, 2)))),
            (Atom("delayed_cmd"), (Atom("assign_deferred"), r.choice(self._keys(machine)), r.sample(TOKENS, 2))),
            (Atom("down"), r.choice(PIDS), Atom("noconnection")),
            self._settle_overdue(machine),
        )  # fmt: skip
        return r.choice(made), None

    def _settle_overdue(self, machine: Machine) -> Any:
        """An overdue consumer settles messages."""
        state = machine.state
        late = {key: one for key, one in (*state.waiting, *state.consumers.items()) if one.overdue}
        if not late:
            return (Atom("timeout"), Atom("evaluate_consumer_timeout"))
        key = self.r.choice([*late])
        ids = self.r.sample(late[key].overdue, self.r.randint(1, len(late[key].overdue)))
        return Atom(self.r.choice(("settle", "return", "discard"))), key, ids
