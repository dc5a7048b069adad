"""A real 3.10.8 node on damaged stores: it does what `verify` predicts for each, and serves all that `repair` repaired.

Each kind of damage has its own vhost on one node. `MQSTORE_HARMS` sets how many of them are started unrepaired: those
whose damage makes the node hang take seconds each.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.finding import Finding
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq import open_store
from storage_core.store import Mode
from tests.rabbitmq import golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node import Node
from tests.support import rabbitmq_counts
from tests.support.rabbitmq_harm import HARMS, LARGE, SMALL, make, there
from tests.support.sampling import WHOLE

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SEED = os.environ.get("MQSTORE_SEED", "20261121")
UNREPAIRED = int(os.environ.get("MQSTORE_HARMS", "8"))
START = """
Start = fun(V) ->
  Self = self(),
  P = spawn(fun() -> Self ! {self(), catch rabbit_vhost_sup_sup:start_vhost(V)} end),
  receive
    {P, {ok, _}} -> served;
    {P, _} -> failed
  after 2500 ->
    [exit(Q, kill) || Q <- processes(),
      {dictionary, D} <- [process_info(Q, dictionary)], {current_function, C} <- [process_info(Q, current_function)],
      proplists:get_value('$initial_call', D) == {rabbit_msg_store, init, 1}, C == {gen, do_call, 4}],
    receive {P, _} -> hung after 5000 -> blocked end
  end
end,
"""
"""Starts a vhost. One that hangs does so while its message store counts references; without it the start fails."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "node")
    found.start()
    yield found
    found.kill()


def declare(node: Node, vhosts: list[str], folder: Path) -> None:
    """Creates the vhosts and their queues, and stops them again."""
    everything = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    queue = {"durable": True, "auto_delete": False, "arguments": {}}
    file = folder / "definitions.json"
    file.write_text(json.dumps({
        "vhosts": [{"name": name} for name in vhosts],
        "permissions": [{**everything, "vhost": name} for name in vhosts],
        "queues": [{**queue, "name": each, "vhost": name} for name in vhosts for each in (SMALL, LARGE)],
    }))  # fmt: skip
    node.ctl("import_definitions", str(file))
    node.eval(f"[rabbit_vhost_sup_sup:stop_and_delete_vhost(V) || V <- [{erlang_list(vhosts)}]].")


def erlang_list(vhosts: list[str]) -> str:
    return ",".join(f'<<"{name}">>' for name in vhosts)


def started(node: Node, stores: dict[str, Path]) -> dict[str, str]:
    """Puts the stores in place and starts their vhosts; returns the outcome of each."""
    for vhost, store in stores.items():
        target = node.vhosts / paths.vhost_directory(vhost.encode())
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(store, target)
    output = node.eval(START + f"[{{V, Start(V)}} || V <- [{erlang_list(list(stores))}]].")
    return dict(re.findall(r'<<"(\w+)">>,\s*(\w+)', output))


def drained(node: Node, vhost: str) -> dict[str, list[tuple[bytes, bool]]] | None:
    """Bodies and redelivered flags of both queues; None if the node fails meanwhile."""
    found = {}
    try:
        for queue in (SMALL, LARGE):
            with Client(node.port, vhost, timeout_s=5) as client:
                found[queue] = [(each.body, each.redelivered) for each in client.drain(queue)]
    except OSError:
        return None
    return found


def ours(store: Path) -> dict[str, list[tuple[bytes, bool]]]:
    columns = ("queue", "body", "redelivered")
    rows = golden.table(store, columns=columns, topics=there(store), mode=Mode.DROPMALFORMED).to_pylist()
    by_queue: dict[str, list[tuple[bytes, bool]]] = {SMALL: [], LARGE: []}
    for row in rows:
        by_queue[row["queue"]].append((row["body"], row["redelivered"]))
    return by_queue


def stubs(node: Node, vhost: str) -> set[bytes]:
    """The contents of the stubs of the vhost's queues."""
    folder = node.vhosts / paths.vhost_directory(vhost.encode())
    return {path.read_bytes() for path in folder.glob(f"queues/*/{paths.STUB_FILE}")}


def foretold(found: list[Finding]) -> str:
    """The outcome for a store that the effects reported by `verify` predict."""
    effects = " | ".join(finding.effect for finding in found)
    for text, outcome in (
        ("hangs", "hung"),
        ("does not start the vhost", "failed"),
        ("or crashes", "served or crashed"),
        ("crashes", "crashed"),
        ("delivers it as it is", "served as it is"),
    ):
        if text in effects:
            return outcome
    return "served"


def test_a_node_on_damaged_and_repaired_stores(node: Node, tmp_path: Path) -> None:
    found: dict[str, list[Finding]] = {}
    damaged, repaired, names = {}, {}, {}
    for number, (name, harm) in enumerate(HARMS.items()):
        for vhost in (f"d{number}", f"r{number}"):
            names[vhost] = name
            store = make(tmp_path / "stores" / vhost, vhost, harm.clean)
            harm.apply(store)
            with open_store(str(store)) as opened:
                found[vhost] = list(opened.verify())
                if vhost.startswith("r"):
                    opened.repair()
            (repaired if vhost.startswith("r") else damaged)[vhost] = store
    tried = sorted(random.Random(SEED).sample(sorted(damaged), min(UNREPAIRED, len(damaged))))
    damaged = {vhost: damaged[vhost] for vhost in tried}
    declare(node, [*repaired, *damaged], tmp_path)
    wrong = []
    outcomes = started(node, repaired)
    for vhost, store in repaired.items():
        wanted = ours(store)
        if outcomes[vhost] != "served" or drained(node, vhost) != wanted:
            wrong.append(f"{names[vhost]}: repaired, the node's start is {outcomes[vhost]}")
        assert sum(map(len, wanted.values())) >= 92 - HARMS[names[vhost]].lost
    for vhost, outcome in started(node, damaged).items():
        delivered = drained(node, vhost) if outcome == "served" else None
        actual = "crashed" if outcome == "served" and delivered is None else outcome
        expected = foretold(found[vhost])
        if actual not in expected:
            wrong.append(f"{names[vhost]}: the node {actual}, foretold was {expected}: {found[vhost]}")
        elif expected == "served" and delivered != ours(damaged[vhost]):
            wrong.append(f"{names[vhost]}: the node serves other messages than mqstore reads")
        elif expected == "served as it is":
            more = sum(map(len, (delivered or {}).values())) - sum(map(len, ours(damaged[vhost]).values()))
            if more != HARMS[names[vhost]].lost:
                wrong.append(f"{names[vhost]}: the node serves {more} messages more than mqstore reads")
        if actual == "served":
            own = [QueueName(vhost.encode(), queue.encode(), None, 1) for queue in (SMALL, LARGE)]
            assert stubs(node, vhost) <= {paths.encode_stub(name) for name in own}, names[vhost]
    assert not wrong, "\n".join(wrong)


@pytest.mark.sampled
@pytest.mark.skipif(not WHOLE, reason="a node and ten vhosts; make test-real-full sets MQSTORE_WHOLE")
def test_a_node_on_stores_with_another_segment_count(node: Node, tmp_path: Path) -> None:
    stores = {
        f"s{number}": rabbitmq_counts.make(tmp_path / "stores" / f"s{number}", f"s{number}", case)
        for number, case in enumerate(rabbitmq_counts.CASES.values())
    }
    declare(node, list(stores), tmp_path)
    outcomes = started(node, stores)
    for (vhost, store), (name, case) in zip(stores.items(), rabbitmq_counts.CASES.items(), strict=True):
        wanted = rabbitmq_counts.expected(case)
        assert outcomes[vhost] == "served", name
        assert drained(node, vhost) == wanted == ours(store), name
