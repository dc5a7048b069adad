"""A job that is stopped between two file moves, and a node that then starts: nothing of the job is lost."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from storage_core.rabbitmq.write import publish
from storage_core.rabbitmq.write.job import finish_unfinished
from tests.faults import Died
from tests.rabbitmq import golden
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import LATER, Node4
from tests.real.rabbitmq.written import QUEUES, declare, drained, put, rows, write
from tests.support.sampling import SEED, WHOLE

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def stopped_before(monkeypatch: pytest.MonkeyPatch, kind: str, which: int) -> None:
    """Makes a job die before it moves its `which`-th file whose name ends in `kind`."""
    move, seen = publish._move, []

    def until(source: str, target: str) -> None:
        if target.endswith(kind):
            seen.append(target)
            if len(seen) > which:
                raise Died
        move(source, target)

    monkeypatch.setattr(publish, "_move", until)


def cases() -> list[Any]:
    """The node release, and the move before which the job dies; a sample is a single case of 3.10."""
    first = [(Node, kind, which) for kind, which in ((".rdq", 0), (".rdq", 1), (".idx", 0), (".idx", 2), (".dets", 0))]
    later = [(Node4, kind, which) for kind, which in ((".rdq", 1), (".qs", 1), (".qi", 0), (".qi", 2), (".dets", 0))]
    if not WHOLE:
        return [random.Random(SEED).choice(first)]
    return first + [pytest.param(*case, marks=LATER) for case in later]


@pytest.mark.parametrize(("release", "kind", "which"), cases())
def test_a_node_starts_between_two_moves(
    release: type[Node], kind: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, clean = Node(tmp_path / "node") if release is Node else Node4(), random.Random(SEED + which).random() < 0.5
    try:
        store, first, second = tmp_path / "vhosts" / "v", rows(200, SEED), rows(300, SEED + 1)
        write(store, first)
        definitions = node.folder / "definitions.json"
        shutil.copy(tmp_path / "vhosts" / "definitions.json", definitions)
        target = declare(node, node.inside(definitions))
        put(store, target)
        node.start()  # a node of 4.0 converts the queues to version 2
        node.stop()
        with monkeypatch.context() as patched:
            stopped_before(patched, kind, which)
            with pytest.raises(Died):
                write(target, second)
        node.start()
        drained(node)
        node.end(clean)
        time.sleep(1)
        finish_unfinished(str(target), 60)
        bodies = {queue: sorted(t["body"].to_pylist()) for queue, t in by_queue(target).items()}
        node.start()
        delivered = {queue: sorted(delivery.body for delivery in found) for queue, found in drained(node).items()}
        wanted: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        for row in (*first.to_pylist(), *second.to_pylist()):
            wanted[row["queue"]].append(row["body"])
        assert {queue: sorted(each) for queue, each in wanted.items()} == delivered == bodies
    finally:
        node.remove()


def by_queue(store: Path) -> dict[str, Any]:
    table = golden.table(store, columns=("queue", "body"))
    return {queue: table.filter(pc.equal(table["queue"], queue)) for queue in QUEUES}
