"""Leftovers of dead writers and late attempts: removed by a later job if the owner is dead, never while it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.stamp import FileStat
from storage_core.job import OTHER_HOST_S, JobFolder
from tests.support.rocketmq_writes import GEOMETRY, bodies, rows, write

STAGER = """
import sys
from storage_core import open_store
from tests.support.rocketmq_writes import GEOMETRY, rows
with open_store(sys.argv[1], "rocketmq") as store:
    job = store.begin_job(publish=sys.argv[2], **GEOMETRY)
    job.stage(iter(rows(20).to_batches()))
    print("staged", flush=True)
    sys.stdin.read()
"""


@contextmanager
def living_writer(path: Path, publish: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has staged its rows and is alive; killed at the end, if it still is."""
    process = subprocess.Popen(
        [sys.executable, "-c", STAGER, str(path), publish], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        yield process
        process.kill()


def leftovers(path: Path) -> list[Path]:
    """The staging folders in the store, and those of shards next to it."""
    staging = path / ".mqstore" / "staging"
    return [*(staging.iterdir() if staging.exists() else ()), *path.parent.glob(f".{path.name}.mqstore-*")]


def later_job(path: Path, publish: str) -> None:
    """Another job for the same path that succeeds, or, for shards, is aborted: the target must stay free."""
    if publish == "append":
        write(path, rows(3), **GEOMETRY)
        return
    with open_store(str(path), "rocketmq") as store:
        store.begin_job(publish="shards", **GEOMETRY).abort()


@pytest.mark.parametrize("publish", ["append", "shards"])
def test_what_a_writer_staged_stays_while_it_lives_and_goes_when_it_is_dead(publish: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with living_writer(path, publish) as process:
        (staged,) = leftovers(path)
        later_job(path, publish)
        assert leftovers(path) == [staged]
        process.kill()
        process.wait()
    assert leftovers(path) == [staged], "nobody has swept yet"
    later_job(path, publish)
    assert leftovers(path) == []


def test_a_dead_writer_that_nobody_has_buried_counts_as_dead(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with living_writer(path, "append") as process:
        process.kill()
        # The process is a zombie until this one waits for it.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        later_job(path, "append")
        assert leftovers(path) == []


def test_a_plain_append_sweeps_shards_of_the_same_name_and_no_others(tmp_path: Path) -> None:
    for name in ("store", "store-2"):
        with living_writer(tmp_path / name, "shards"):
            pass
    assert len(leftovers(tmp_path / "store")) == len(leftovers(tmp_path / "store-2")) == 1
    write(tmp_path / "store", rows(3), **GEOMETRY)
    assert leftovers(tmp_path / "store") == []
    assert len(leftovers(tmp_path / "store-2")) == 1


@pytest.mark.parametrize("change", [{"host": "another"}, {"space": "another container of this machine"}])
@pytest.mark.parametrize("publish", ["append", "shards"])
def test_an_owner_that_cannot_be_seen_from_here_is_given_a_day(
    publish: str, change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with living_writer(path, publish):
        pass
    (staged,) = leftovers(path)
    noted = staged / "owner.json"
    noted.write_text(json.dumps(json.loads(noted.read_text()) | change))
    os.utime(staged, (time.time() - OTHER_HOST_S + 600,) * 2)
    later_job(path, publish)
    assert leftovers(path) == [staged]
    os.utime(staged, (time.time() - OTHER_HOST_S - 600,) * 2)
    later_job(path, publish)
    assert leftovers(path) == []


def test_an_attempt_that_is_late_leaves_nothing_and_never_reaches_the_target(tmp_path: Path) -> None:
    path = tmp_path / "target"
    with open_store(str(path), "rocketmq") as store:
        job = store.begin_job(publish="shards", **GEOMETRY)
    part = job.stage(iter(rows(20).to_batches()))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(20).to_batches()
        assert job.commit([part]) == 20
        yield from rows(20, 100).to_batches()

    with pytest.raises(MqStoreError):
        job.stage(slow(), 0, 1, 1)
    with pytest.raises(MqStoreError, match="does not exist for a task"):
        job.stage(iter(rows(20).to_batches()), 0, 2, 2)
    assert [found.name for found in tmp_path.iterdir()] == ["target"]
    (only,) = find_stores(str(path))
    assert len(bodies(Path(only))) == 20


def test_an_attempt_of_an_append_that_is_late_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_store(str(path), "rocketmq") as store:
        job = store.begin_job(**GEOMETRY)
    part = job.stage(iter(rows(20).to_batches()))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(20).to_batches()
        assert job.commit([part]) == 20
        yield from rows(20, 100).to_batches()

    with pytest.raises(MqStoreError):
        job.stage(slow(), 0, 1, 1)
    assert leftovers(path) == []
    assert len(bodies(path)) == 20


def test_a_task_that_writes_while_its_job_is_aborted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with open_store(str(path), "rocketmq") as store:
        job = store.begin_job(**GEOMETRY)
    writing = job.stage(iter(rows(20).to_batches()))
    listed, staging = system.entries, JobFolder(str(path)).staging(job.job)

    def entries(folder: str) -> list[FileStat]:
        found = list(listed(folder))
        # Between the listing and the removal, a task removes its files, and another creates one.
        if folder.startswith(staging) and os.path.isdir(staging):
            os.unlink(os.path.join(staging, writing.files[0].name))
            Path(staging, "1-0-9.records").touch()
        return found

    monkeypatch.setattr(system, "entries", entries)
    job.abort()
    assert leftovers(path) == []
    with pytest.raises(MqStoreError, match="does not exist for a task"):
        job.stage(iter(rows(20).to_batches()), 1, 0, 9)
    assert leftovers(path) == []
