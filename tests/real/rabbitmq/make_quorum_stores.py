"""Makes the fixtures `v8_random`, `v5_random` and `v3_random` of quorum queues, random histories on nodes of 4.3, 4.0
and 3.12, killed, `v8_returned`, and `v5_giving_way` and `v8_giving_way`.

`python -m tests.real.rabbitmq.make_quorum_stores [NAME ...]` recreates what the tests read.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import time
from collections.abc import Sequence
from functools import partial

from tests.rabbitmq import quorum_golden as golden
from tests.real.maker import make_requested
from tests.real.rabbitmq.giving_way import NOTED_S, give_way, started
from tests.real.rabbitmq.node_4 import Node4, Node43, Node312
from tests.real.rabbitmq.quorum_compared import drained
from tests.real.rabbitmq.quorum_history import SETTLE_S, SMALL_LOG, SNAPSHOTS, TINY_LOG, History, snapshot_often
from tests.real.rabbitmq.returned import a_consumer, modify

STEPS = 60
NOTE = "a random history with consumers, a restart in the middle, killed; small files, and a snapshot where one can be"


def make(name: str, kind: type[Node4], seed: int, log: str = SMALL_LOG) -> None:
    """Makes one fixture: the folder of a killed node, and what it delivered after its next start."""
    node = kind(log)
    try:
        node.start()
        snapshot_often(node)
        history = History(node, seed, consumers=True)
        history.declare()
        history.run(STEPS)
        node.stop()
        history.abandon()
        node.start()
        snapshot_often(node)
        time.sleep(SETTLE_S)
        history.run(STEPS)
        node.kill()
        history.abandon()
        keep(name, node)
        node.start()
        time.sleep(SETTLE_S)
        tell(name, NOTE, node, history.queues)
    finally:
        node.remove()


def keep(name: str, node: Node4) -> None:
    """Writes the folder of the node's quorum queues, as a killed node left it."""
    with tarfile.open(golden.FOLDER / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(node.vhosts.parents[1] / "quorum", "quorum")


def tell(name: str, note: str, node: Node4, queues: Sequence[str]) -> None:
    """Writes what the running node delivers from each queue."""
    lines = [{"scenario": name, "note": note, "end": "kill", "rabbitmq": node.ctl("version")}]
    found = drained(node, list(queues))
    lines += [{"vhost": vhost, "queue": queue, **each} for (vhost, queue), rows in found.items() for each in rows]
    data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    (golden.FOLDER / f"{name}.truth.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))


def make_returned() -> None:
    """Makes `v8_returned`: a queue whose consumer annotated messages and delayed some, with a snapshot in between."""
    node = Node43(SMALL_LOG)
    try:
        node.start()
        with a_consumer(node, {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 80_000_000}):
            modify(node, [0], True, '#{<<"x-opt-text">> => <<"a">>}')
            modify(node, [1], False, '#{<<"x-opt-text">> => <<"b">>, <<"x-opt-number">> => 5}')
            node.eval(SNAPSHOTS)
            time.sleep(1)
            modify(node, [2], False, '#{<<"x-opt-delivery-time">> => 2000000000000}')
        keep("v8_returned", node)
    finally:
        node.remove()


def make_giving_way(name: str, kind: type[Node4], starts: int) -> None:
    """Makes a fixture of a node killed while its single active consumer gives way, and of what is delivered after
    `starts` starts.
    """
    node = kind()
    try:
        node.start()
        give_way(node, NOTED_S)
        keep(name, node)
        started(node, starts)
        tell(name, f"a single active consumer that gives way when the node is killed; start {starts}", node, ["q"])
    finally:
        node.remove()


if __name__ == "__main__":
    make_requested(
        {
            "v8_returned": make_returned,
            "v8_random": partial(make, "v8_random", Node43, 8, TINY_LOG),
            "v5_random": partial(make, "v5_random", Node4, 5),
            "v3_random": partial(make, "v3_random", Node312, 3),
            "v5_giving_way": partial(make_giving_way, "v5_giving_way", Node4, 1),
            "v8_giving_way": partial(make_giving_way, "v8_giving_way", Node43, 2),
        },
        __doc__,
    )
