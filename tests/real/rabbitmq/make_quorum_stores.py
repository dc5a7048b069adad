"""Makes the fixtures `v8_random`, `v5_random` and `v3_random` of quorum queues, random histories on nodes of 4.3, 4.0
and 3.12, killed, and `v8_returned`.

`python -m tests.real.rabbitmq.make_quorum_stores` writes anew what the tests read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import time

from storage_core.formats.rabbitmq.amqp import properties
from tests.rabbitmq import quorum_golden as golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.node_4 import Node4, Node43, Node312
from tests.real.rabbitmq.quorum_history import SETTLE_S, SMALL_LOG, SNAPSHOTS, TINY_LOG, History, snapshot_often
from tests.real.rabbitmq.returned import a_consumer, modify

STEPS = 60
NOTE = "a random history with consumers, a restart in the middle, killed; small files, and a snapshot where one can be"


def make(name: str, kind: type[Node4], seed: int, log: str = SMALL_LOG) -> None:
    """One fixture: the folder of a killed node, and what it delivered after its next start."""
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
        with tarfile.open(golden.FOLDER / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(node.vhosts.parents[1] / "quorum", "quorum")
        node.start()
        time.sleep(SETTLE_S)
        lines = [{"scenario": name, "note": NOTE, "end": "kill", "rabbitmq": node.ctl("version")}]
        for queue in history.queues:
            with Client(node.port) as client:
                for each in client.consume(queue):
                    listed = golden.as_delivered(
                        hashlib.sha256(each.body).hexdigest(), len(each.body), properties.decode(each.properties),
                        each.exchange, each.routing_key, each.redelivered,
                    )  # fmt: skip
                    lines.append({"vhost": "/", "queue": queue, **listed})
    finally:
        node.remove()
    data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    (golden.FOLDER / f"{name}.truth.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))


def make_returned() -> None:
    """`v8_returned`: a queue whose consumer annotated messages and delayed some, with a snapshot in the middle."""
    node = Node43(SMALL_LOG)
    try:
        node.start()
        with a_consumer(node, {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 80_000_000}):
            modify(node, [0], True, '#{<<"x-opt-text">> => <<"a">>}')
            modify(node, [1], False, '#{<<"x-opt-text">> => <<"b">>, <<"x-opt-number">> => 5}')
            node.eval(SNAPSHOTS)
            time.sleep(1)
            modify(node, [2], False, '#{<<"x-opt-delivery-time">> => 2000000000000}')
        with tarfile.open(golden.FOLDER / "v8_returned.tar.gz", "w:gz") as archive:
            archive.add(node.vhosts.parents[1] / "quorum", "quorum")
    finally:
        node.remove()


if __name__ == "__main__":
    make_returned()
    make("v8_random", Node43, 8, TINY_LOG)
    make("v5_random", Node4, 5)
    make("v3_random", Node312, 3)
