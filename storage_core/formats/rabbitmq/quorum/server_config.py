"""The `config` file of a quorum queue member: which queue it belongs to. Source: docs/format/rabbitmq-quorum.md 2.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import erlang_text

_OTHERS = frozenset({"rabbit_stream_coordinator", "khepri_machine"})
"""Machines of raft servers that are not queues."""
_KEYS = ("cluster_name", "log_init_args")
_SYSTEM_KEYS = ("data_dir", "names")
_NAMES = ("directory", "directory_rev", "open_mem_tbls", "closed_mem_tbls", "log_meta", "wal", "segment_writer")
"""Keys that a node needs to start the queue: in a config, in its `system_config`, and in the `names` there."""


@dataclass(frozen=True)
class ServerConfig:
    """`members` are (name, node) as of the queue's declaration; `server` is the member that owns this file.

    `flaw` states what keeps a node from serving the queue, a contradiction or a missing key; empty if nothing does.
    """

    uid: bytes
    vhost: str
    queue: str
    members: tuple[Any, ...]
    server: Any
    flaw: str = ""


def parse(data: bytes) -> ServerConfig | None:
    """Decodes a config; None for a raft server that is not a quorum queue. Raises FormatError."""
    terms = erlang_text.parse(data.decode("utf-8", "surrogateescape"))
    if len(terms) != 1 or not isinstance(terms[0], dict):
        raise FormatError(0, "a server's config is one map")
    config = terms[0]
    machine = config.get("machine")
    if isinstance(machine, tuple) and len(machine) > 1 and machine[1] in _OTHERS:
        return None
    names = Counter(_queues_in(config))
    uid = config.get("uid")
    if not names or not isinstance(uid, bytes):
        raise FormatError(0, "the config does not name its queue")
    (vhost, queue), _ = names.most_common(1)[0]
    members = config.get("initial_members")
    listed = tuple(members) if isinstance(members, list) else ()
    flaw = _flaw(machine, (vhost, queue), [config.get("id"), *listed]) or _lacking(config)
    return ServerConfig(uid, _text(vhost), _text(queue), listed, config.get("id"), flaw)


def _flaw(machine: Any, name: tuple[bytes, bytes], servers: list[Any]) -> str:
    """Why a node fails to start the queue with the values of this config; empty if it does not."""
    if not isinstance(machine, tuple) or len(machine) != 3 or machine[:2] != ("module", "rabbit_fifo"):
        return "the config names another machine than that of a quorum queue"
    if not isinstance(machine[2], dict) or _resource(machine[2].get("queue_resource")) != name:
        return "the config calls the queue by two names"
    if len({server[0] if isinstance(server, tuple) and server else None for server in servers}) > 1:
        return "the config calls the queue's server by two names"
    return ""


def _lacking(config: dict[Any, Any]) -> str:
    """Names the missing key that makes a node fail to start the queue. Without a `system_config`, it uses its own."""
    wanted: list[tuple[dict[Any, Any], tuple[str, ...]]] = [(config, _KEYS)]
    system = config.get("system_config")
    if isinstance(system, dict):
        names = system.get("names")
        wanted += [(system, _SYSTEM_KEYS), (names if isinstance(names, dict) else {}, _NAMES)]
    lacking = [key for part, keys in wanted for key in keys if key not in part]
    return f"the config has no {lacking[0]}" if lacking else ""


def _queues_in(term: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yields virtual host and queue wherever a config names them."""
    found = _resource(term)
    if found is not None:
        yield found
    elif isinstance(term, dict):
        for value in term.values():
            yield from _queues_in(value)
    elif isinstance(term, list | tuple):
        for value in term:
            yield from _queues_in(value)


def _resource(term: Any) -> tuple[bytes, bytes] | None:
    if isinstance(term, tuple) and len(term) == 4 and term[0] == "resource" and term[2] == "queue":
        vhost, queue = term[1], term[3]
        return (vhost, queue) if isinstance(vhost, bytes) and isinstance(queue, bytes) else None
    return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
