"""The file `config` of one quorum queue's member: whose it is. Source: docs/format/rabbitmq-quorum.md 2.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import erlang_text


@dataclass(frozen=True)
class ServerConfig:
    """`members` are (name, node) of when the queue was declared; `node` is the one whose file this is."""

    uid: bytes
    vhost: str
    queue: str
    members: tuple[Any, ...]
    server: Any


def parse(data: bytes) -> ServerConfig | None:
    """None for a raft server that is no quorum queue. FormatError."""
    terms = erlang_text.parse(data.decode("utf-8", "surrogateescape"))
    if len(terms) != 1 or not isinstance(terms[0], dict):
        raise FormatError(0, "a server's config is one map")
    config = terms[0]
    machine = config.get("machine")
    if not isinstance(machine, tuple) or len(machine) != 3 or machine[1] != "rabbit_fifo":
        return None
    resource = machine[2].get("queue_resource") if isinstance(machine[2], dict) else None
    uid = config.get("uid")
    if not isinstance(resource, tuple) or len(resource) != 4 or not isinstance(uid, bytes):
        raise FormatError(0, "the config does not name its queue")
    members = config.get("initial_members")
    names = (resource[1].decode("utf-8", "replace"), resource[3].decode("utf-8", "replace"))
    return ServerConfig(uid, *names, tuple(members) if isinstance(members, list) else (), config.get("id"))
