"""The walks over a job's records: those of a small job keep what the first one found, and all find the same."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_core import open_store
from storage_core.job import JobFolder
from storage_core.rocketmq.write import commit_plan, job, publish
from storage_core.rocketmq.write.commit_plan import Course, Plan, Walked
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, bodies, made_store, rows

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

    def begun(root: str, plan: Plan) -> None:
        fresh = replace(plan, walked=Walked())
        next(iter(Course(fresh, JobFolder(root).staging(plan.job))))
        left.append(fresh)
        carry_out(root, fresh)

    monkeypatch.setattr(job, "carry_out", begun)
    directory = made_store("own", tmp_path / "store")
    with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
        store.append(NEW_ROWS)
    assert left[0].walked.chunks is not None, "the walk of the publisher was whole"
    assert len(bodies(directory)) == 47 + len(NEW_ROWS)


def test_threads_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", 16)
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000_000_000_000)
    written = []
    for name, least in (("alone", 1 << 30), ("threads", 0)):
        monkeypatch.setattr(publish, "WORTH_THREADS", least)
        directory = made_store("own", tmp_path / name)
        with open_store(str(directory), "rocketmq", **GEOMETRY) as store:
            store.append(rows(ROWS, 300))
        files = [each for each in sorted(directory.rglob("*")) if each.is_file() and ".mqstore" not in each.parts]
        # Index files are named by the time at which they are made.
        written.append(sorted(each.read_bytes() for each in files if each.parent.name == "index"))
        written.append(
            [(each.relative_to(directory), each.read_bytes()) for each in files if each.parent.name != "index"]
        )
    assert all(written)
    assert written[:2] == written[2:]
