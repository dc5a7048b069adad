"""What the engines' stores define of the interface is the same for a store at a URI."""

from __future__ import annotations

import inspect
import re

import pytest

from storage_core.rabbitmq.quorum.partition import QuorumPartition
from storage_core.rabbitmq.quorum.snapshot import QuorumSnapshot
from storage_core.rabbitmq.quorum.store import QuorumStore
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.store import VhostStore
from storage_core.rabbitmq.stream_queues.snapshot import StreamQueuesSnapshot
from storage_core.rabbitmq.stream_queues.store import StreamQueuesStore
from storage_core.remote_store import RemotePartition, RemoteSnapshot, RemoteStore
from storage_core.rocketmq.read.queue_partition import QueuePartition
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.store import RocketStore
from storage_core.store import ScanPartition, Snapshot, Store

ONLY_LOCAL = {"drop_staged_by", "read"}
"""What a store does after a write, which a URI does not take; and a lookup without a plan, which gives equal rows."""


@pytest.mark.parametrize(
    ("interface", "remote", "engines"),
    [
        (Store, RemoteStore, (RocketStore, VhostStore, QuorumStore, StreamQueuesStore)),
        (Snapshot, RemoteSnapshot, (RocketSnapshot, VhostSnapshot, QuorumSnapshot, StreamQueuesSnapshot)),
        (ScanPartition, RemotePartition, (QueuePartition, QuorumPartition)),
    ],
)
def test_whatever_an_engine_defines_is_forwarded(interface: type, remote: type, engines: tuple[type, ...]) -> None:
    names = {name for name in dir(interface) if not name.startswith("_")}
    defined = {
        name
        for engine in engines
        for name in names
        if getattr(engine, name, None) is not getattr(interface, name, None) or f"self.{name} =" in source_of(engine)
    }
    assigned = set(re.findall(r"self\.(\w+)(?=[ ,][^\n]*= )", source_of(remote)))
    assert len(defined) >= 2
    assert defined - set(vars(remote)) - assigned - ONLY_LOCAL == set()


def source_of(kind: type) -> str:
    return inspect.getsource(kind)
