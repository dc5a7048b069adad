"""Snapshots of real nodes: unpacking them, their truth, and our rows in a comparable form."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core.rabbitmq import open_store
from storage_core.store import ScanRequest

SNAPSHOTS = Path(__file__).parents[1] / "golden" / "rabbitmq" / "snapshots"
NAMES = sorted(path.name[: -len(".tar.gz")] for path in SNAPSHOTS.glob("*.tar.gz"))
DEFAULT_VHOST = "628WB79CIFDYO9LJI6DKMI09L"


def unpack(name: str, target: Path) -> Path:
    """The `vhosts` folder of a snapshot, unpacked below `target`."""
    with tarfile.open(SNAPSHOTS / f"{name}.tar.gz") as archive:
        # Python before 3.11.4 (Debian 12) does not support `filter` and behaves as with "tar".
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(target)
    return target / "vhosts"


@cache
def truth(name: str) -> dict[str, Any]:
    """The truth as recorded from the node."""
    found: dict[str, Any] = json.loads(gzip.decompress((SNAPSHOTS / f"{name}.json.gz").read_bytes()))
    return found


def table(path: Path, **request: Any) -> pa.Table:
    """All rows of one store."""
    wanted = ScanRequest(**request)
    with open_store(str(path)) as store:
        snapshot = store.snapshot()
        batches = [batch for partition in snapshot.plan(wanted) for batch in partition.read()]
        return pa.Table.from_batches(batches, snapshot.schema(wanted))


def by_queue(found: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Rows by queue, in their order. Callers leave out columns of times that Python cannot represent."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found.to_pylist():
        rows.setdefault(row["queue"], []).append(row)
    return rows


def as_delivered(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the format of the truth files."""
    return {
        "body_sha256": hashlib.sha256(row["body"]).hexdigest(),
        "body_size": row["size"],
        "props_bin": row["rawProperties"].hex(),
        "exchange": row["exchange"],
        "routing_key": row["routingKeys"][0],
        "redelivered": row["redelivered"],
        "persistent": row["persistent"],
    }


def without_properties(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the truth without the fields that repeat its property bytes."""
    return {name: value for name, value in message.items() if name not in {"properties", "headers"}}
