"""The walks over a job's records: a small job keeps what its first walk found, and all walks find the same."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.job import JobFolder
from storage_core.rocketmq.write import commit_plan, job, publish, staging
from storage_core.rocketmq.write.commit_plan import Course, Plan, Walked
from storage_core.rocketmq.write.options import write_settings
from storage_core.store import Scan, ScanRequest
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, bodies, contents, made_store, rows

ROWS = 50


def planned(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[Any]]:
    """The plan of a job, and what its walks found one after another."""
    seen: list[Any] = []
    plans: list[Plan] = []
    carry_out = job.carry_out

    def looked_at(root: str, plan: Plan) -> None:
        plans.append(plan)
        staging = JobFolder(root).staging(plan.job)
        for each in (plan, plan, replace(plan, walked=Walked())):
            course = Course(each, staging)
            chunks = list(course)
            numbers = [(chunk.numbering, chunk.queue_offsets) for chunk in chunks]
            seen.append((chunks, numbers, course.keys, course.next_queue_offsets, course.firsts, course.stop))
        carry_out(root, plan)

    monkeypatch.setattr(job, "carry_out", looked_at)
    with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
        store.append(rows(ROWS, 300))
    return plans[0], seen


def same(one: Any, other: Any) -> bool:
    """Whether two results of a walk are equal, arrays by their elements."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return bool(one == other)


@pytest.mark.parametrize("kept", [0, ROWS - 1, ROWS, commit_plan.KEPT_COUNT])
def test_each_walk_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(commit_plan, "KEPT_COUNT", kept)
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    directory = made_store("own", tmp_path / "store")
    plan, seen = planned(directory, monkeypatch)
    assert (plan.walked.chunks is not None) == (kept >= ROWS)
    assert len(seen[0][0]) == -(-ROWS // 16)
    assert same(seen[0], seen[1])
    assert same(seen[0], seen[2])
    assert len(bodies(directory)) == 47 + ROWS


def test_a_walk_that_was_left_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    left: list[Plan] = []
    carry_out = job.carry_out

    def carry_out_afresh(root: str, plan: Plan) -> None:
        fresh = replace(plan, walked=Walked())
        next(iter(Course(fresh, JobFolder(root).staging(plan.job))))
        left.append(fresh)
        carry_out(root, fresh)

    monkeypatch.setattr(job, "carry_out", carry_out_afresh)
    directory = made_store("own", tmp_path / "store")
    with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
        store.append(NEW_ROWS)
    assert left[0].walked.chunks is not None, "the walk of the publisher was whole"
    assert len(bodies(directory)) == 47 + len(NEW_ROWS)


def written_bytes(directory: Path) -> list[Any]:
    """The bytes of all files that a broker would see. Index files are named after the time of their creation."""
    files = [each for each in sorted(directory.rglob("*")) if each.is_file() and ".mqstore" not in each.parts]
    return [
        sorted(each.read_bytes() for each in files if each.parent.name == "index"),
        [(each.relative_to(directory), each.read_bytes()) for each in files if each.parent.name != "index"],
    ]


def test_threads_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    written = []
    for name, least in (("alone", 1 << 30), ("threads", 0)):
        monkeypatch.setattr(publish, "WORTH_THREADS", least)
        directory = made_store("own", tmp_path / name)
        with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
            store.append(rows(ROWS, 300))
        written.append(written_bytes(directory))
    assert all(written[0])
    assert written[0] == written[1]


def by_tasks(directory: Path, batches: list[pa.RecordBatch], **options: Any) -> None:
    """Writes the batches as a task does, with staged records."""
    with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
        job_of_tasks = store.begin_job(batches[0].schema.names, **options)
        job_of_tasks.commit([job_of_tasks.stage(iter(batches))])


@pytest.mark.usefixtures("either_loops")
@pytest.mark.parametrize("most_kept", [0, 3000, 1 << 20])
@pytest.mark.parametrize("buffer_size", [1, 700, 1 << 20])
def test_rows_in_memory_become_the_records_that_tasks_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int, buffer_size: int
) -> None:
    """Whatever part of the rows is kept, and wherever log files, walks, batches and buffers divide them."""
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    monkeypatch.setattr(staging, "MOST_KEPT", most_kept)
    monkeypatch.setattr(publish, "BUFFER_SIZE", buffer_size)
    monkeypatch.setattr(publish, "WORTH_THREADS", 0)
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    hosts = pa.array(["10.0.0.1:7" if row % 5 else "[::1]:9" for row in range(ROWS)])
    table = rows(ROWS, 300).append_column("bornHost", hosts).append_column("flag", pa.array(range(ROWS), pa.int32()))
    batches, named = table.to_batches(max_chunksize=7), list[str]()
    staged, kept = made_store("own", tmp_path / "staged"), made_store("own", tmp_path / "kept")
    by_tasks(staged, batches)
    stage_task = job.stage_task

    def looking(*args: Any) -> Any:
        part = stage_task(*args)
        named.extend(file.name.rpartition(".")[2] for file in part.files)
        return part

    monkeypatch.setattr(job, "stage_task", looking)
    with open_store(str(kept), "rocketmq", **GEOMETRY) as store:
        assert store.append(pa.Table.from_batches(batches)) == ROWS
    assert ("records" in named) == (most_kept < 1 << 20)
    assert written_bytes(kept) == written_bytes(staged)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(pa.binary(), 0), (pa.string(), 0), (pa.large_binary(), 0), (pa.dictionary(pa.int32(), pa.binary()), 7)],
)
def test_bodies_that_are_no_copy_count_for_nothing(kind: pa.DataType, size: int) -> None:
    (batch,) = pa.table({"body": pa.array([b"abc", b"defg"]).cast(kind)}).to_batches()
    task = staging.Task(write_settings({"topic": "t"}), {}, 0, 1 << 30)
    kept = staging.KeptRows()
    kept.add(task.prepare(batch).rows, batch)
    assert kept._size == 2 * staging.ROW_SIZE + size


@pytest.mark.usefixtures("either_loops")
def test_preserved_rows_in_memory_become_the_records_that_tasks_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    source = made_store("own", tmp_path / "source")
    with open_store(str(source)) as store:
        batches = list(store.snapshot().read(ScanRequest(scan=Scan.LOG, decompress=False)))
    by_tasks(tmp_path / "staged", batches, preserve=True)
    with open_store(str(tmp_path / "kept"), "rocketmq", **GEOMETRY) as store:
        store.append(pa.Table.from_batches(batches), preserve=True)
    assert written_bytes(tmp_path / "kept") == written_bytes(tmp_path / "staged")


def test_an_error_while_records_are_made_takes_the_job_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = made_store("own", tmp_path / "store")
    before, count = contents(directory), len(bodies(directory))

    def full(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(publish, "encode", full)
        with pytest.raises(MemoryError), open_store(str(directory), "rocketmq", **GEOMETRY) as store:
            store.append(NEW_ROWS)
    assert contents(directory) == before
    with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
        store.append(NEW_ROWS)
    assert len(bodies(directory)) == count + len(NEW_ROWS)
