"""Random commands: after each, our state machine of quorum queues has the state of the module of a real node of 4.0."""

from __future__ import annotations

from typing import Any

import pytest

from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.rabbitmq.quorum.machine.commands import Command, apply
from storage_core.rabbitmq.quorum.machine.message_facts import facts_of
from storage_core.rabbitmq.quorum.machine.state import State, from_snapshot
from storage_core.rabbitmq.quorum.replay import MACHINES
from tests.real.rabbitmq.machine_script import Script, states
from tests.real.rabbitmq.node_4 import LATER, ROUNDS, Node4
from tests.support.sampling import SEED

SCRIPTS = 4 * ROUNDS
COMMANDS = 150
pytestmark = [pytest.mark.real, pytest.mark.sampled, pytest.mark.timeout(0), LATER]


@pytest.mark.parametrize("versions", [(2,), (3,), (5,), (2, 3, 5)], ids=lambda each: "-".join(map(str, each)))
def test_the_states_of_the_real_module(versions: tuple[int, ...]) -> None:
    node = Node4()
    inside = str(node.folder).replace(str(node.root), "")
    try:
        node.start()
        for number in range(SCRIPTS):
            seed = f"{SEED} {versions} {number}"
            steps, ours = run(seed, versions)
            for step, mine, theirs in zip(steps, ours, states(node, steps, inside), strict=True):
                version = mine["version"]
                assert mine == shown(from_snapshot(theirs, version)), (seed, step)
    finally:
        node.remove()


def run(seed: str, versions: tuple[int, ...]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The steps of one script, and our states after each."""
    script, sizes = Script(seed, versions[0]), {}
    machine = MACHINES[versions[0]](State(versions[0]), lambda index: sizes[index])
    first = Command(1, script.time, (Atom("update_config"), script.config()), None)
    module = Atom("rabbit_fifo" if versions[0] == 5 else "rabbit_fifo_v3")
    steps: list[Any] = [(Atom("init"), module, script.config())]
    apply(machine, decoded(first))
    ours = [shown(machine.state)]
    for version in versions:
        if version != script.version:
            script.index += 1
            before, script.version = script.version, version
            steps.append(script.step((Atom("machine_version"), before, version)))
            machine = MACHINES[version](machine.state.upgraded(version), lambda index: sizes[index])
            ours.append(shown(machine.state))
        for step, command in script.commands(machine, COMMANDS):
            if command.message is not None:
                sizes[command.index] = facts_of(decoded(command).message).size
            apply(machine, decoded(command))
            steps.append(step)
            ours.append(shown(machine.state))
    return steps, ours


def decoded(command: Command) -> Command:
    """The command as it is read from a log."""
    parts, reply = et.decode(et.encode((command.parts, command.reply or Atom("noreply"))))
    return Command(command.index, command.time, parts, reply)


def shown(state: State) -> dict[str, Any]:
    """What can be compared of a state: of counts and expiries only those of what it holds; turns count from 5 on."""
    held = set(state.held())
    lanes = [*state.messages.normal], [*state.messages.high], state.messages.turn * (state.version == 5)
    noted = [
        {index: value for index, value in sorted(values.items()) if index in held}
        for values in (state.deliveries, state.expiries)
    ]
    return {
        "version": state.version, "settings": repr(state.settings), "lanes": lanes, "returns": [*state.returns],
        "consumers": {key: repr(each) for key, each in state.consumers.items()}, "waiting": repr(state.waiting),
        "service": {priority: [*line] for priority, line in state.service.items() if line},
        "publishers": dict(state.publishers), "deliveries, expiries": noted,
    }  # fmt: skip
