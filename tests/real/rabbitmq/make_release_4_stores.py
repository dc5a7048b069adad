"""Makes the snapshots of real nodes of 3.10 (`v310_…`), 4.0 (`v4_…`) and 4.3 (`v43_…`): `…_compacted_*`,
`…_protocols_*` and `…_usual_clean`.

They have holes in their message files, messages published by AMQP 1.0 and MQTT, and messages as most clients send them.
`python -m tests.real.rabbitmq.make_release_4_stores [NAME ...]` recreates what the tests read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.rabbitmq import golden
from tests.real.maker import make_requested
from tests.real.rabbitmq.amqp import Delivery
from tests.real.rabbitmq.history_3 import UsualHistory
from tests.real.rabbitmq.history_4 import QUEUES, VHOST, History
from tests.real.rabbitmq.node_4 import Node4, Node43
from tests.real.rabbitmq.protocol_history import ProtocolHistory

Usual = TypeVar("Usual", bound=History)
RELEASES = {"v4": Node4, "v43": Node43}
MESSAGES, NEVER_DELIVERED, ATTEMPTS, OF_EACH_PROTOCOL, USUAL = 200, 60, 8, 120, 256
ORDER = "in the order the real node delivered them after a restart from exactly this directory, nothing acked"
COMPACTED = "message files of 1 MB, compacted where they lie: zeros and old copies between the records"
CLIENTS = "messages as most clients send them: Celery's tasks, by AMQP 1.0, and by MQTT 3.1.1 and MQTT 5"
KEPT_OTHERWISE = "queues of version 2: dead letters of Celery's tasks, bodies in two pieces, and blind copies"
PROTOCOLS = "messages that came by AMQP 1.0, MQTT 3.1.1 and MQTT 5"


def _as_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "body_sha256": hashlib.sha256(delivery.body).hexdigest(),
        "body_size": len(delivery.body),
        "props_bin": delivery.properties.hex(),
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": delivery.redelivered,
        "persistent": True,
    }


def _compacted(name: str, release: type[Node4]) -> History:
    """The first of a few histories whose message files have holes."""
    for attempt in range(ATTEMPTS):
        history = History(f"{name} {attempt}", release)
        try:
            history.until_compacted(MESSAGES)
            if history.holes():
                history.alike(NEVER_DELIVERED)
                return history
        except BaseException:
            history.node.remove()
            raise
        history.node.remove()
    raise RuntimeError(f"no compaction in {ATTEMPTS} histories left holes")


def _of_protocols(name: str, release: type[Node4]) -> History:
    return _published(ProtocolHistory(name, release), lambda history: history.work(OF_EACH_PROTOCOL))


def _of_clients(name: str, release: type[Node4]) -> History:
    return _published(ProtocolHistory(name, release), lambda history: history.usual(USUAL))


def _kept_otherwise(name: str) -> History:
    return _published(UsualHistory(name), lambda history: history.usual(USUAL))


def _published(history: Usual, publish: Callable[[Usual], None]) -> History:
    """Publishes and returns the history; removes its node if publishing fails."""
    try:
        publish(history)
    except BaseException:
        history.node.remove()
        raise
    return history


def make(name: str, begin: Callable[[str], History], note: str) -> None:
    """Makes one snapshot of a node that is stopped or killed, as the name states."""
    clean, history = name.endswith("clean"), begin(name)
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
                "messages": [_as_json(each) for each in listed],
            }
            for queue, listed in history.delivered().items()
        ]
        stopped, release = "clean" if clean else "kill9", history.node.ctl("version")
        truth = {
            "name": name,
            "rabbitmq": release,
            "shutdown": stopped,
            "note": f"{note}; messages are {ORDER}",
            "queues": queues,
        }
        data = json.dumps(truth, separators=(",", ":")).encode()
        (golden.SNAPSHOTS / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))
    finally:
        history.node.remove()


KINDS = (("compacted", _compacted, COMPACTED), ("protocols", _of_protocols, PROTOCOLS))

if __name__ == "__main__":
    makers = {
        f"{number}_{kind}_{stopped}": (partial(begin, release=release), about)
        for stopped in ("clean", "kill9")
        for kind, begin, about in KINDS
        for number, release in RELEASES.items()
    }
    makers["v43_usual_clean"] = partial(_of_clients, release=Node43), CLIENTS
    makers["v310_usual_clean"] = _kept_otherwise, KEPT_OTHERWISE
    make_requested({name: partial(make, name, *each) for name, each in makers.items()}, __doc__)
