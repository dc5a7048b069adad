"""The queue tables of a real node: what it listed, after a clean stop and after a kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import find_stores
from storage_core.rabbitmq import looks_like_store, open_store, stores_below
from storage_core.rabbitmq.disk import node
from storage_core.store import ScanRequest
from tests.rabbitmq import golden

TABLES = golden.SNAPSHOTS.parent / "node"


@pytest.fixture(params=["clean", "killed"])
def data_directory(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A node's data directory with the tables of a real one and the vhosts of a snapshot; what the node listed."""
    folder = tmp_path / "rabbit@host"
    shutil.copytree(TABLES / request.param, folder)
    golden.unpack("s9_vhosts_kill9", folder / "msg_stores")
    return folder, json.loads((folder / "queues.json").read_text())


def test_declared_queues(data_directory: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, listed = data_directory
    found = node.declared_queues(str(folder / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST))
    assert {key: (queue.kind, json.loads(queue.arguments)) for key, queue in found.items()} == {
        (row["vhost"], row["name"]): (row["type"], {name: value for name, _, value in row["arguments"]})
        for row in listed
        if row["durable"]
    }
    assert all(queue.durable for queue in found.values())


def test_queues_elsewhere_are_counted(data_directory: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, listed = data_directory
    paths = stores_below(str(folder))
    assert len(paths) == 3
    assert (
        find_stores(str(folder)) == find_stores(str(folder.parent)) == find_stores(str(folder / "msg_stores")) == paths
    )
    assert all(map(looks_like_store, paths))
    with open_store(next(path for path in paths if path.endswith(golden.DEFAULT_VHOST))) as store:
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        assert [line for line in snapshot.warnings() if "has 1 quorum queue and 1 stream queue; their messages" in line]
        rows = {row["queue"]: row for batch in store.view("queues") for row in batch.to_pylist()}
    assert (rows["quorum"]["type"], rows["quorum"]["messages"]) == ("quorum", None)
    assert json.loads(rows["prio"]["arguments"]) == {"x-max-priority": 3, "x-message-ttl": 60000}
    assert rows["prio"]["messages"] == 0
    assert rows["same.name"]["messages"] == 4
    assert {row["name"] for row in listed if row["vhost"] == "/" and row["durable"]} <= set(rows)


def test_a_node_without_tables(tmp_path: Path) -> None:
    golden.unpack("s9_vhosts_kill9", tmp_path / "msg_stores")
    assert node.declared_queues(str(tmp_path / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST)) == {}
    assert len(stores_below(str(tmp_path / "msg_stores"))) == 3
    assert len(stores_below(str(tmp_path / "msg_stores" / "vhosts"))) == 3
    assert stores_below(str(tmp_path / "nothing")) == []
