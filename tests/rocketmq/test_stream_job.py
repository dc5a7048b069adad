"""The micro-batches of streaming queries as jobs: each once, several queries into one store, nothing left behind."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest

from storage_core import job as jobs
from storage_core import open_store
from storage_core.store import ScanRequest

BATCHES = int(os.environ.get("MQSTORE_BATCHES", "120"))
SMALL = {"commitLogFileSize": 1 << 16, "consumeQueueFileEntries": 100, "indexSlots": 101, "indexEntries": 400}


def table(query: str, number: int, rows: int = 10) -> pa.Table:
    body = [f"{query} {number} {row}".encode() for row in range(rows)]
    return pa.table({"topic": ["t"] * rows, "body": body, "key": [f"k{row}" for row in range(rows)]})


def commit(root: Path, query: str, number: int, rows: int = 10) -> int:
    """One micro-batch, as the processes of a query write it."""
    with open_store(str(root), "rocketmq", **SMALL) as store:
        job = pickle.loads(pickle.dumps(store.begin_job(["topic", "body", "key"])))
    parts = [job.stage(iter(table(query, number, rows).to_batches()))]
    return pickle.loads(pickle.dumps(job)).of_query(query, number).commit(parts)


def bodies(root: Path) -> list[bytes]:
    with open_store(str(root)) as store:
        plan = store.snapshot().plan(ScanRequest(columns=("body", "physicalOffset")))
        rows = [row for piece in plan for batch in piece.read() for row in batch.to_pylist()]
    return [row["body"] for row in sorted(rows, key=lambda row: row["physicalOffset"])]


def test_a_batch_that_comes_again_is_dropped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert [commit(root, "a", 0), commit(root, "a", 1), commit(root, "a", 1), commit(root, "a", 0)] == [10, 10, 0, 0]
    assert [commit(root, "b", 0), commit(root, "b", 0), commit(root, "a", 2)] == [10, 0, 10]
    order = (("a", 0), ("a", 1), ("b", 0), ("a", 2))
    assert bodies(root) == [body for each in order for body in table(*each)["body"].to_pylist()]


def test_an_application_of_a_batch_write_is_another(tmp_path: Path) -> None:
    root = tmp_path / "store"
    commit(root, "a", 5)
    with open_store(str(root)) as store:
        assert store.append(table("a", 5), txnAppId="a", txnVersion=5) == 10
        assert store.append(table("a", 5)) == 10


def test_an_empty_batch_is_no_job(tmp_path: Path) -> None:
    root = tmp_path / "store"
    commit(root, "a", 0)
    state = (root / ".mqstore" / "state.json").read_bytes()
    assert commit(root, "a", 1, rows=0) == 0
    assert (root / ".mqstore" / "state.json").read_bytes() == state
    assert sorted(os.listdir(root / ".mqstore")) == ["lock", "queries", "state.json"]


def test_many_micro_batches_leave_only_what_the_store_needs(tmp_path: Path) -> None:
    root = tmp_path / "store"
    costs = []
    for number in range(BATCHES):
        started = time.process_time()
        assert commit(root, f"q{number % 3}", number) == 10
        costs.append(time.process_time() - started)
    assert len(bodies(root)) == 10 * BATCHES
    assert sorted(os.listdir(root / ".mqstore")) == ["lock", "queries", "state.json"]
    assert len(os.listdir(root / ".mqstore" / "queries")) == 3
    names = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and ".mqstore" not in path.parts]
    by_folder = {str(folder): sum(name.parts[0] == folder for name in names) for folder in {n.parts[0] for n in names}}
    log_bytes = max(int(name.name) for name in names if name.parts[0] == "commitlog") + (1 << 16)
    assert by_folder["commitlog"] == log_bytes >> 16
    assert by_folder["consumequeue"] <= 4 * (10 * BATCHES // 4 // 100 + 1)
    assert by_folder["index"] == -(-10 * BATCHES // 399)
    if BATCHES >= 1000:
        first, last = median(costs[:100]), median(costs[-100:])
        print(f"{BATCHES} commits of 10 rows: the last hundred took {last / first:.2f} of the first hundred")
        assert last <= 1.3 * first


def test_marks_are_pruned_when_they_are_many_and_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    monkeypatch.setattr(jobs, "MOST_MARKS", 4)
    for number in range(9):
        commit(root, f"q{number}", 0)
    marks = root / ".mqstore" / "queries"
    assert len(list(marks.iterdir())) == 9, "none is pruned that wrote in the last thirty days"
    old = time.time() - jobs.MARK_LIFE_S - 99
    for number in (0, 1, 2, 3, 4, 5, 6):
        os.utime(jobs.JobFolder(str(root)).mark(f"stream:q{number}"), (old + number, old + number))
    assert commit(root, "q0", 0) == 0, "a known query prunes nothing"
    assert len(list(marks.iterdir())) == 9
    assert commit(root, "q9", 0) == 10
    assert {path.name for path in marks.iterdir()} == {
        os.path.basename(jobs.JobFolder(str(root)).mark(f"stream:q{number}")) for number in (6, 7, 8, 9)
    }
    assert [commit(root, "q6", 0), commit(root, "q9", 0)] == [0, 0]


def test_what_a_given_up_batch_staged_goes_with_it(tmp_path: Path) -> None:
    """No task has reported, so only the query's checkpoint identifies the owner of the staging folder."""
    root = tmp_path / "store"
    commit(root, "a", 0)
    with open_store(str(root), "rocketmq", **SMALL) as store:
        given_up = store.begin_job(["topic", "body"], "/checkpoint/a")
        other = store.begin_job(["topic", "body"], "/checkpoint/b")
        given_up.stage(iter(table("a", 1).select(["topic", "body"]).to_batches()))
        staged = root / ".mqstore" / "staging"
        assert len(list(staged.iterdir())) == 2
        store.drop_staged_by("/checkpoint/a")
        assert [path.name for path in staged.iterdir()] == [other.job]
        other.abort()
        assert sorted(os.listdir(root / ".mqstore")) == ["lock", "queries", "state.json"]


def test_a_given_up_first_batch_leaves_no_directory(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    with open_store(str(root), "rocketmq", **SMALL) as store:
        first, _ = (store.begin_job(["topic", "body"], f"/checkpoint/{name}") for name in "ab")
        first.stage(iter(table("a", 1).select(["topic", "body"]).to_batches()))
        store.drop_staged_by("/checkpoint/b")
        assert os.listdir(root / ".mqstore" / "staging") == [first.job], "the other query goes on"
        store.drop_staged_by("/checkpoint/a")
    assert os.listdir(tmp_path) == []
