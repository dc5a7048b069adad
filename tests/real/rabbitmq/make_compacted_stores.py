"""Makes the snapshots `v4_compacted_*`: stores of a real node of RabbitMQ 4 with holes in their message files.

`python -m tests.real.rabbitmq.make_compacted_stores` writes anew what the tests read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from typing import Any

from tests.rabbitmq import golden
from tests.real.rabbitmq.amqp import Delivery
from tests.real.rabbitmq.history_4 import QUEUES, VHOST, History

MESSAGES, ATTEMPTS = 200, 8
NOTE = (
    "message files of 1 MB, compacted where they lie: zeros and old copies between the records. messages are in the "
    "order the real node delivered them after a restart from exactly this directory, nothing acked"
)


def _told(delivery: Delivery) -> dict[str, Any]:
    return {
        "body_sha256": hashlib.sha256(delivery.body).hexdigest(),
        "body_size": len(delivery.body),
        "props_bin": delivery.properties.hex(),
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": delivery.redelivered,
        "persistent": True,
    }


def _compacted(name: str) -> History:
    """The first of a few histories that has holes."""
    for attempt in range(ATTEMPTS):
        history = History(f"{name} {attempt}")
        try:
            history.until_compacted(MESSAGES)
            if history.holes():
                return history
        except BaseException:
            history.node.remove()
            raise
        history.node.remove()
    raise RuntimeError(f"no compaction in {ATTEMPTS} histories left holes")


def make(name: str, clean: bool) -> None:
    """One snapshot, of a node that was stopped or killed after a compaction left holes."""
    history = _compacted(name)
    try:
        history.end(clean)
        with tarfile.open(golden.SNAPSHOTS / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(history.vhost, f"vhosts/{history.vhost.name}")
        history.node.start()
        queues = [
            {
                "vhost": VHOST,
                "name": queue,
                "durable": True,
                "args": QUEUES[queue],
                "vhost_dir": history.vhost.name,
                "exists_after_restart": True,
                "messages": [_told(each) for each in listed],
            }
            for queue, listed in history.delivered().items()
        ]
        stopped, release = "clean" if clean else "kill9", history.node.ctl("version")
        truth = {"name": name, "rabbitmq": release, "shutdown": stopped, "note": NOTE, "queues": queues}
        data = json.dumps(truth, separators=(",", ":")).encode()
        (golden.SNAPSHOTS / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))
    finally:
        history.node.remove()


if __name__ == "__main__":
    make("v4_compacted_clean", True)
    make("v4_compacted_kill9", False)
