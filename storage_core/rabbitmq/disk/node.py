"""What a node's own metadata states about the queues of a vhost's store within the node's data directory.

Reads `rabbit_durable_queue.DCD` and `.DCL`, Mnesia's copies of that table (a dump, and changes since), and Mnesia's
transaction log, where the latest changes remain even after a clean stop; `khepri` reads what later nodes have in
Khepri. `views` and `snapshot` use the result. Source: files of a real 3.10.8 node (tests/golden/rabbitmq/node).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import disk_log, external_term
from storage_core.rabbitmq.disk import khepri
from storage_core.rabbitmq.disk.detect import node_directory
from storage_core.rabbitmq.disk.span_reader import read_table

DUMP_FILE, LOG_FILE = "rabbit_durable_queue.DCD", "rabbit_durable_queue.DCL"
TRANSACTION_FILES = ("PREVIOUS.LOG", "LATEST.LOG")
DISC_COPIES = 4
"""Index in the record `commit` of the changes that one transaction made to tables kept on disk."""
TABLE = "rabbit_durable_queue"

NAME, DURABLE, ARGUMENTS, TYPE, TYPE_STATE = 1, 2, 5, 19, 20
"""Indices of the fields of the record `amqqueue` that are read."""

_KINDS = {"rabbit_classic_queue": "classic", "rabbit_quorum_queue": "quorum", "rabbit_stream_queue": "stream"}


@dataclass(frozen=True)
class DeclaredQueue:
    """A durable queue as the node knows it. `arguments` are JSON text; `kind` is classic, quorum, stream or another.

    For a stream, `directory` is the name of its directory, and `replicas` how many nodes have one.
    """

    vhost: str
    name: str
    durable: bool
    arguments: str
    kind: str
    directory: str | None = None
    replicas: int = 1

    def columns(self) -> dict[str, Any]:
        """Its columns in a row of the view `queues`."""
        return {"durable": self.durable, "arguments": self.arguments, "type": self.kind}


def declared_queues(root: str) -> dict[tuple[str, str], DeclaredQueue]:
    """The durable queues by vhost and name; empty if the tables beside the store are missing or unreadable."""
    return queues_of_node(node_directory(root))


def queues_of_node(folder: str) -> dict[tuple[str, str], DeclaredQueue]:
    """The durable queues by vhost and name that the metadata in a node's data directory lists."""
    records: dict[Any, Any] = {}
    for term in _terms(f"{folder}/{DUMP_FILE}"):
        if isinstance(term, tuple) and len(term) > TYPE and term[0] == "amqqueue":
            records[term[NAME]] = term
    for term in _terms(f"{folder}/{LOG_FILE}"):
        _change(records, term)
    for name in TRANSACTION_FILES:
        for term in _terms(f"{folder}/{name}"):
            if isinstance(term, tuple) and len(term) > DISC_COPIES and term[0] == "commit":
                for change in term[DISC_COPIES] if isinstance(term[DISC_COPIES], list) else []:
                    _change(records, change)
    found = {}
    for record in [*records.values(), *khepri.queue_records(folder).values()]:
        queue = _queue(record)
        if queue is not None and queue.durable:
            found[queue.vhost, queue.name] = queue
    return found


def other_kinds(root: str, vhost: str) -> str | None:
    """One line that counts the queues of the vhost whose messages are not in this store; None if there are none."""
    kinds = Counter(queue.kind for queue in declared_queues(root).values() if queue.vhost == vhost)
    kinds.pop("classic", None)
    if not kinds:
        return None
    counted = " and ".join(f"{count} {kind} queue{'s' * (count > 1)}" for kind, count in sorted(kinds.items()))
    return f"{root}: the vhost also has {counted}; their messages lie elsewhere in {node_directory(root)}"


def elsewhere(root: str, name: str, kind: str) -> str:
    """The text of an error about a queue whose messages are not in this store."""
    return (
        f"UnsupportedFormatError: {root}: {name} is a {kind} queue, whose messages lie elsewhere; "
        f"open the node's data directory, {node_directory(root)}"
    )


def _terms(path: str) -> list[Any]:
    found = []
    try:
        data = read_table(path, disk_log.MAGIC_BYTES)
        starts, stops, _ = disk_log.items(data)
    except FormatError:
        return []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        try:
            found.append(external_term.decode(data[start:stop]))
        except FormatError:
            continue
    return found


def _change(records: dict[Any, Any], term: Any) -> None:
    """Applies one change: {{table, key}, record, operation}."""
    if not isinstance(term, tuple) or len(term) != 3 or not isinstance(term[0], tuple) or len(term[0]) != 2:
        return
    (table, key), record, operation = term
    if table != TABLE:
        return
    if operation == "write" and isinstance(record, tuple) and len(record) > TYPE:
        records[key] = record
    elif operation in {"delete", "delete_object"}:
        records.pop(key, None)


def _queue(record: tuple[Any, ...]) -> DeclaredQueue | None:
    resource = record[NAME]
    if not isinstance(resource, tuple) or len(resource) != 4 or not isinstance(resource[1], bytes):
        return None
    vhost, name = resource[1].decode("utf-8", "replace"), resource[3].decode("utf-8", "replace")
    kind = _KINDS.get(str(record[TYPE]), str(record[TYPE]))
    state = record[TYPE_STATE] if len(record) > TYPE_STATE and isinstance(record[TYPE_STATE], dict) else {}
    nodes, directory = state.get("nodes"), state.get("name")
    return DeclaredQueue(
        vhost, name, record[DURABLE] == "true", _arguments(record[ARGUMENTS]), kind,
        _text(directory) if kind == "stream" else None, len(nodes) if isinstance(nodes, list) else 1,
    )  # fmt: skip


def _text(letters: Any) -> str | None:
    """A string as a node writes one: a list of bytes, or a binary."""
    try:
        return bytes(letters).decode("utf-8", "replace") if isinstance(letters, list | bytes) else None
    except (TypeError, ValueError):
        return None


def _arguments(listed: Any) -> str:
    """A list of {name, type, value} as a JSON object."""
    pairs = {}
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, tuple) and len(item) == 3 and isinstance(item[0], bytes):
            pairs[item[0].decode("utf-8", "replace")] = _plain(item[1], item[2])
    return json.dumps(pairs, ensure_ascii=False)


def _plain(kind: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if kind == "bool":
        return value == "true"
    if kind == "void":
        return None
    if kind == "table" and isinstance(value, list):
        return {item[0].decode("utf-8", "replace"): _plain(item[1], item[2]) for item in value}
    if kind == "array" and isinstance(value, list):
        return [_plain(item[0], item[1]) for item in value]
    return value if isinstance(value, int | float) else str(value)
