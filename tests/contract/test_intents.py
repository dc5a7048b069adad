"""An unfinished write in a store of unknown origin: no path that its intent names leads out of the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.job import JobFolder
from tests.contract.engine import Engine
from tests.contract.messages import NEW
from tests.contract.writing import contents
from tests.faults import Died, stopped_at

OUTSIDE = ("../../victim", "/victim", "a/../../../victim", "x\0y", "")

Steps = tuple[str | int, ...]
NAMED: dict[str, list[Steps]] = {
    "rocketmq": [
        ("job",), ("folders", 0), ("index_names", 0), ("index_name",), ("parts", 0, "files", 0, 0),
        ("parts", 0, "detail", "queues", 0, 0), ("files", "target"), ("files", "name"),
    ],
    "rabbitmq": [("job",), ("moves", 0, 0), ("moves", 0, 1), ("cleanMoves", 0, 1), ("removes", 0), ("spare",)],
}  # fmt: skip


def committed(engine: Engine, own: Path) -> dict[str, Any]:
    """Leaves the store as a writer does that dies right after its commit point; returns its intent."""
    last = 0
    while not Path(JobFolder(str(own)).intent).exists():
        with stopped_at(last), pytest.raises(Died), open_store(str(own)) as opened:
            opened.append(engine.table(NEW))
        last += 1
    return dict(json.loads(Path(JobFolder(str(own)).intent).read_bytes()))


def set_name(intent: dict[str, Any], path: Steps, name: str) -> None:
    """Puts a name where a path leads; a list that is too short grows."""
    if path[0] == "files":
        target, (staged, size) = next(iter(intent["files"].items())) if intent["files"] else ("x", ("y", 1))
        intent["files"] = {name: [staged, size]} if path[1] == "target" else {target: [name, size]}
        return
    found: Any = intent
    for step in path[:-1]:
        if isinstance(found, list) and step == len(found):
            found.append(["x", "y"])
        found = found[step]
    if isinstance(found, list) and path[-1] == len(found):
        found.append(name)
    found[path[-1]] = name


def test_an_intent_names_nothing_outside_the_store(engine: Engine, own: Path, tmp_path: Path) -> None:
    intent = committed(engine, own)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").write_bytes(b"kept")
    for path in NAMED[engine.name]:
        for name in OUTSIDE:
            if path == ("folders", 0) and name == "/victim":
                continue  # the log may lie anywhere
            changed = json.loads(json.dumps(intent))
            set_name(changed, path, name)
            Path(JobFolder(str(own)).intent).write_text(json.dumps(changed))
            before = contents(own)
            with pytest.raises(MqStoreError, match="not in the store") as caught, open_store(str(own)) as opened:
                opened.append(engine.table(NEW))
            assert "\n" not in str(caught.value), path
            assert contents(own) == before, (path, name)
    assert (tmp_path / "victim" / "kept").read_bytes() == b"kept"


def test_an_intent_as_it_was_written_is_finished(engine: Engine, own: Path, tmp_path: Path) -> None:
    committed(engine, own)
    moved = shutil.copytree(own, tmp_path / "moved" / own.name)
    with open_store(str(moved)) as opened:
        opened.append(engine.table(NEW))
    assert sum(row[2] == NEW[0].body for row in engine.rows(moved)) == 2


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_read_opens_no_file_of_a_job_outside_the_store(engine: Engine, own: Path, name: str) -> None:
    """RabbitMQ's tables of the last clean stop are in the job's folder; RocketMQ's readers need none."""
    intent = committed(engine, own)
    before = sorted(engine.rows(own))
    Path(JobFolder(str(own)).intent).write_text(json.dumps({**intent, "job": name}))
    if engine.name == "rocketmq":
        assert sorted(engine.rows(own)) == before
    else:
        with pytest.raises(MqStoreError, match="not in the store"):
            engine.rows(own)
