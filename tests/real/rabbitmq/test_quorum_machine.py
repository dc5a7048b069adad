"""Random commands: after each, our state machine of quorum queues has the same state as a real node's module."""

from __future__ import annotations

from typing import Any

import pytest

from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.rabbitmq.quorum.machine.commands import Command, apply, facts_for
from storage_core.rabbitmq.quorum.machine.lanes import Lanes
from storage_core.rabbitmq.quorum.machine.snapshot_state import from_snapshot
from storage_core.rabbitmq.quorum.machine.state import State
from storage_core.rabbitmq.quorum.replay import MACHINES
from tests.real.rabbitmq.machine_script import Script, states
from tests.real.rabbitmq.node_4 import LATER, ROUNDS, Node4, Node43
from tests.support.sampling import SEED

SCRIPTS = 4 * ROUNDS
COMMANDS = 150
pytestmark = [pytest.mark.real, pytest.mark.sampled, pytest.mark.timeout(0), LATER]


MODULES = {
    Node4: {2: "rabbit_fifo_v3", 3: "rabbit_fifo_v3", 4: "rabbit_fifo", 5: "rabbit_fifo"},
    Node43: dict.fromkeys((2, 3), "rabbit_fifo_v3")
    | dict.fromkeys((4, 5, 6, 7), "rabbit_fifo_v7")
    | {8: "rabbit_fifo"},
}


@pytest.mark.parametrize(
    ("kind", "versions"),
    [
        (Node4, (2,)), (Node4, (3,)), (Node4, (4,)), (Node4, (5,)), (Node4, (2, 3, 4, 5)),
        (Node43, (6,)), (Node43, (7,)), (Node43, (8,)), (Node43, (2, 3, 4, 5, 6, 7, 8)),
    ],
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, tuple) else each.package[1],
)  # fmt: skip
def test_the_states_of_the_real_module(kind: type[Node4], versions: tuple[int, ...]) -> None:
    node = kind()
    inside = str(node.folder).replace(str(node.root), "")
    try:
        node.start()
        for number in range(SCRIPTS):
            seed = f"{SEED} {versions} {number}"
            steps, ours = run(seed, versions, MODULES[kind])
            for step, mine, theirs in zip(steps, ours, states(node, steps, inside), strict=True):
                version = mine["version"]
                assert mine == shown(from_snapshot(theirs, version)), (seed, step)
    finally:
        node.remove()


def run(seed: str, versions: tuple[int, ...], modules: dict[int, str]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The steps of one script, and our state after each."""
    script, sizes = Script(seed, versions[0], modules), {}
    machine = MACHINES[versions[0]](State().upgraded(versions[0], 0), lambda index: sizes[index])
    first = Command(1, script.time, (Atom("update_config"), script.config()), None)
    steps: list[Any] = [(Atom("init"), script.module, script.config())]
    apply(machine, decoded(first))
    ours = [shown(machine.state)]
    for version in versions:
        if version != script.version:
            script.index += 1
            before, script.version = script.version, version
            steps.append(script.step((Atom("machine_version"), before, version)))
            machine = MACHINES[version](machine.state.upgraded(version, script.time), lambda index: sizes[index])
            ours.append(shown(machine.state))
        for step, command in script.commands(machine, COMMANDS):
            if command.message is not None:
                sizes[command.index] = machine.counted(facts_for(decoded(command)))
            apply(machine, decoded(command))
            steps.append(step)
            ours.append(shown(machine.state))
    return steps, ours


def decoded(command: Command) -> Command:
    """The command as it is read from a log."""
    parts, reply = et.decode(et.encode((command.parts, command.reply or Atom("noreply"))))
    return Command(command.index, command.time, parts, reply)


def shown(state: State) -> dict[str, Any]:
    """The comparable parts of a state: counts and expiries only of messages that it holds, turns from version 5 on."""
    held = set(state.held())
    messages = state.messages
    lanes: Any = (
        ([*messages.normal], [*messages.high], messages.turn * (state.version >= 5))
        if isinstance(messages, Lanes)
        else {priority: [*queue] for priority, queue in messages.queues.items()}
    )
    noted = [
        {index: value for index, value in sorted(values.items()) if index in held}
        for values in (state.counts, state.failures, state.expiries, state.annotations)
    ]
    return {
        "version": state.version, "settings": repr(state.settings), "lanes": lanes, "returns": [*state.returns],
        "consumers": {key: repr(each) for key, each in state.consumers.items()}, "waiting": repr(state.waiting),
        "service": {priority: [*line] for priority, line in state.service.items() if line},
        "publishers": dict(state.publishers), "noted": noted,
        "delayed": dict(state.delayed.due), "deferred": dict(state.delayed.deferred), "next": state.delayed.first,
        "discards": [*state.discards], "worker": repr(state.worker),
    }  # fmt: skip
