"""Quorum queues of real nodes: unpacking them, what the restarted node delivered, and our rows in the same format."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from storage_core.formats.rabbitmq.amqp import properties
from storage_core.rabbitmq import open_store
from storage_core.store import ScanRequest

FOLDER = Path(__file__).parents[1] / "golden" / "rabbitmq" / "quorum"
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))
COMPARED = ("body_sha256", "body_size", "props", "exchange", "routing_key", "redelivered")

Message = dict[str, Any]
Queue = tuple[str, str]


def unpack(name: str, target: Path) -> Path:
    """The folder of a fixture's quorum queues, unpacked below `target`."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(target)
    (folder,) = (target / "quorum").iterdir()
    return folder


def truth(name: str) -> tuple[dict[str, Any], dict[Queue, list[Message]]]:
    """The facts of a fixture, and the messages that the node delivered from each queue."""
    lines = gzip.decompress((FOLDER / f"{name}.truth.jsonl.gz").read_bytes()).decode().splitlines()
    found: dict[Queue, list[Message]] = {}
    for line in lines[1:]:
        message = json.loads(line)
        found.setdefault((message["vhost"], message["queue"]), []).append(
            _sorted({key: message[key] for key in COMPARED})
        )
    return json.loads(lines[0]), found


def rows(folder: Path, options: dict[str, Any] | None = None, **request: Any) -> list[dict[str, Any]]:
    """All rows of the quorum queues in a folder."""
    with open_store(str(folder), options) as store:
        plan = store.snapshot().plan(ScanRequest(**request))
        return [row for partition in plan for batch in partition.read() for row in batch.to_pylist()]


def delivered(found: list[dict[str, Any]]) -> dict[Queue, list[Message]]:
    """Rows in the format of the truth, by queue."""
    queues: dict[Queue, list[Message]] = {}
    for row in found:
        listed = properties.decode(row["rawProperties"])
        for name, count in ((b"x-delivery-count", row["deliveryCount"]), (b"x-acquired-count", row["acquiredCount"])):
            if count:
                listed["headers"] = [*listed.get("headers", []), (name, "l", count)]
        queues.setdefault((row["vhost"], row["queue"]), []).append(
            as_delivered(
                hashlib.sha256(row["body"]).hexdigest(), row["size"], listed, row["exchange"], row["routingKeys"][0],
                row["redelivered"],
            )
        )  # fmt: skip
    return queues


def as_delivered(
    body_sha256: str, body_size: int, listed: dict[str, Any], exchange: str, routing_key: str, redelivered: bool
) -> Message:
    """One message in the format of the truth."""
    values = (body_sha256, body_size, _plain(listed), exchange, routing_key, redelivered)
    return _sorted(dict(zip(COMPARED, values, strict=True)))


def _sorted(message: Message) -> Message:
    """Sorts the headers, as a node adds its own before or after the publisher's."""
    if "headers" in message["props"]:
        message["props"]["headers"] = sorted(message["props"]["headers"], key=json.dumps)
    return message


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return text if text.encode() == value and text.isprintable() else {"hex": value.hex()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return repr(value) if isinstance(value, float) else value
