"""Makes `tests/golden/rabbitmq/node`: the queue tables of a real node, after a clean stop and a kill, and its own list.

`python -m tests.real.rabbitmq.make_node_tables [tables] [khepri]` recreates what the tests read.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

from tests.real.maker import make_requested
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import Node43
from tests.real.rabbitmq.stream_history import SETTLE_S

TARGET = Path(__file__).parents[2] / "golden" / "rabbitmq" / "node"
TABLES = ("rabbit_durable_queue.DCD", "rabbit_durable_queue.DCL", "LATEST.LOG")
DECLARE = """
Declare = fun(V, Name, Durable, Args) ->
  rabbit_amqqueue:declare(rabbit_misc:r(V, queue, Name), Durable, false, Args, none, <<"guest">>) end,
"""
QUEUES = """
Declare(<<"/">>, <<"plain">>, true, []),
Declare(<<"/">>, <<"prio">>, true, [{<<"x-max-priority">>, byte, 3}, {<<"x-message-ttl">>, long, 60000}]),
Declare(<<"/">>, <<"lazy">>, true, [{<<"x-queue-mode">>, longstr, <<"lazy">>}]),
Declare(<<"/">>, <<"transient">>, false, []),
Declare(<<"/">>, <<"quorum">>, true, [{<<"x-queue-type">>, longstr, <<"quorum">>}]),
Declare(<<"/">>, <<"stream">>, true, [{<<"x-queue-type">>, longstr, <<"stream">>}]),
Declare(<<"other">>, <<"plain">>, true, [{<<"x-overflow">>, longstr, <<"reject-publish">>}]),
"""
LATER = """
Declare(<<"/">>, <<"later">>, true, []),
{ok, Gone} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"lazy">>)),
rabbit_amqqueue:delete(Gone, false, false, <<"guest">>),
"""


def listed(node: Node) -> list[dict[str, object]]:
    """The queues of both vhosts as the node lists them."""
    found = []
    for vhost in ("/", "other"):
        text = node.ctl("list_queues", "-q", "-p", vhost, "--formatter", "json", "name", "durable", "type", "arguments")
        found += [{"vhost": vhost, **row} for row in json.loads(text)]
    return sorted(found, key=lambda row: (str(row["vhost"]), str(row["name"])))


def keep(node: Node, name: str, queues: list[dict[str, object]]) -> None:
    """Copies the tables and the list to `TARGET/name`."""
    target = TARGET / name
    target.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        source = node.vhosts.parents[1] / table
        if source.exists():
            shutil.copyfile(source, target / table)
    (target / "queues.json").write_text(json.dumps(queues, indent=1) + "\n")


def make_khepri() -> None:
    """Makes the same for a killed node of 4.3: its metadata store and the folders of its streams."""
    node, target = Node43(), TARGET / "khepri"
    try:
        node.start()
        node.ctl("add_vhost", "other")
        node.eval(DECLARE + QUEUES + LATER + "ok.")
        queues = listed(node)
        time.sleep(SETTLE_S)
        node.kill()
        target.mkdir(exist_ok=True)
        with tarfile.open(target / "node.tar.gz", "w:gz") as archive:
            for name in ("coordination", "stream"):
                archive.add(node.vhosts.parents[1] / name, name)
        (target / "queues.json").write_text(json.dumps(queues, indent=1) + "\n")
    finally:
        node.remove()


def make_tables() -> None:
    """Runs a node twice: until a clean stop, and until a kill."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), "tables")
        node.start()
        try:
            node.ctl("add_vhost", "other")
            node.eval(DECLARE + QUEUES + "ok.")
            queues = listed(node)
            node.stop()
            keep(node, "clean", queues)
            node.start()
            node.eval(DECLARE + LATER + "ok.")
            queues = listed(node)
            time.sleep(8)  # the log is written with a delay
        finally:
            node.kill()
        keep(node, "killed", queues)


if __name__ == "__main__":
    make_requested({"tables": make_tables, "khepri": make_khepri}, __doc__)
