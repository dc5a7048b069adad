"""Streams of real nodes: unpacking them, what the restarted node delivered, and our rows in the same format."""

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
from tests.rabbitmq.quorum_golden import COMPARED, Message, Queue, as_delivered

FOLDER = Path(__file__).parents[1] / "golden" / "rabbitmq" / "streams"
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))


def unpack(name: str, target: Path, folder: Path = FOLDER) -> Path:
    """The folder of a fixture's streams, unpacked below `target`."""
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(target)
    return target / "stream"


def truth(name: str, folder: Path = FOLDER) -> dict[Queue, list[Message]]:
    """The messages that the node delivered from each stream."""
    lines = gzip.decompress((folder / f"{name}.truth.jsonl.gz").read_bytes()).decode().splitlines()
    found: dict[Queue, list[Message]] = {}
    for line in lines[1:]:
        message = json.loads(line)
        kept = {key: message[key] for key in (*COMPARED, "offset")}
        kept["props"]["headers"].sort(key=json.dumps)
        found.setdefault((message["vhost"], message["queue"]), []).append(kept)
    return found


def rows(folder: Path, options: dict[str, Any] | None = None, **request: Any) -> list[dict[str, Any]]:
    """All rows of the streams in a folder."""
    with open_store(str(folder), options) as store:
        plan = store.snapshot().plan(ScanRequest(**request))
        return [row for partition in plan for batch in partition.read() for row in batch.to_pylist()]


def delivered(found: list[dict[str, Any]]) -> dict[Queue, list[Message]]:
    """Rows in the format of the truth, by stream. The node adds the offset to the headers."""
    queues: dict[Queue, list[Message]] = {}
    for row in found:
        listed = properties.decode(row["rawProperties"])
        listed["headers"] = [*listed.get("headers", []), (b"x-stream-offset", "l", row["streamOffset"])]
        body = hashlib.sha256(row["body"]).hexdigest()
        message = as_delivered(
            body, row["size"], listed, row["exchange"], row["routingKeys"][0], row["redelivered"]
        )  # fmt: skip
        queues.setdefault((row["vhost"], row["queue"]), []).append({**message, "offset": row["streamOffset"]})
    return queues
