"""Before and after the commit point: a draft that is taken back, records that are synced only in the log."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.rocketmq.write import staging
from storage_core.rocketmq.write.commit_point import GUARD
from tests.faults import Died, stopped_at
from tests.support.rocketmq_visits import served, visit
from tests.support.rocketmq_writes import (
    GEOMETRY,
    NEW_ROWS,
    bodies,
    commit_point,
    contents,
    made_store,
    rows,
    write,
)


def calls(tmp_path: Path) -> list[str]:
    directory = made_store("own", tmp_path / "counted")
    with stopped_at(None) as clock:
        write(directory, NEW_ROWS)
    return clock.log


def stopped(directory: Path, last: int) -> Path:
    made_store("own", directory)
    with pytest.raises(Died), stopped_at(last):
        write(directory, NEW_ROWS)
    return directory


def test_a_job_that_was_only_drafted_is_taken_back(tmp_path: Path) -> None:
    last = commit_point(calls(tmp_path)) - 1
    store = made_store("own", tmp_path / "store")
    before = contents(store / "commitlog")
    with pytest.raises(Died), stopped_at(last):
        write(store, NEW_ROWS)
    after = contents(store / "commitlog")
    assert {name for name in after if after[name] != before.get(name)} == {f"{12288:020d}", GUARD}
    with open_store(str(store)) as opened:
        findings = [(finding.file, finding.reason) for finding in opened.verify()]
    assert [(Path(file).name, reason.partition(" was ")[2]) for file, reason in findings] == [
        ("draft.json", "stopped before it was committed; the next write takes it back")
    ]
    assert len(bodies(store)) == 47

    write(store, rows(1, 900))

    assert len(bodies(store)) == 48
    assert not any(b"body 100 " in path.read_bytes() for path in (store / "commitlog").iterdir())
    assert {path.name for path in (store / ".mqstore").iterdir()} == {"lock", "state.json"}


def test_what_a_broker_served_of_a_draft_stays(tmp_path: Path) -> None:
    """The guard was removed by hand: what a broker may have delivered is not taken back, and nothing is added to it."""
    store = stopped(tmp_path / "store", commit_point(calls(tmp_path)) - 1)
    visit(store, 3, **GEOMETRY)
    accepted = served(store)
    assert len(accepted) > 47 + 3

    write(store, rows(1, 900))

    after = served(store)
    assert {at: after[at] for at in accepted} == accepted
    assert len(after) == len(accepted) + 1


@pytest.mark.parametrize("visited", [False, True])
def test_a_committed_job_needs_its_staged_records_no_more(
    visited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may lose them after the commit point, because they were never synced."""
    monkeypatch.setattr(staging, "MOST_KEPT", 0)
    last = commit_point(calls(tmp_path)) + 2
    store = stopped(tmp_path / "store", last)
    if visited:
        visit(store, 3, **GEOMETRY)
    (records,) = (store / ".mqstore" / "staging").rglob("*.records")
    records.write_bytes(bytes(records.stat().st_size))

    write(store, rows(1, 900))

    found = [body for _, body in served(store).values()]
    assert sorted(body for body in found if body in set(NEW_ROWS["body"].to_pylist())) == sorted(
        NEW_ROWS["body"].to_pylist()
    )
    assert len(found) == 47 + NEW_ROWS.num_rows + 1 + (3 if visited else 0)


def test_staged_records_that_changed_end_the_job(tmp_path: Path) -> None:
    store = made_store("own", tmp_path / "store")
    before = contents(store)
    with open_store(str(store)) as opened:
        job = opened.begin_job(NEW_ROWS.schema.names)
    part = job.stage(iter(NEW_ROWS.to_batches()))
    (staged,) = (store / ".mqstore" / "staging").rglob("*.records")
    data = bytearray(staged.read_bytes())
    data[-5] ^= 1
    staged.write_bytes(data)
    with pytest.raises(MqStoreError, match=r"\.records is not what a task staged; run the job again"):
        job.commit([part])
    job.abort()
    assert contents(store) == before


def test_what_cannot_be_taken_back_now_is_taken_back_by_the_next_writer(tmp_path: Path) -> None:
    log = calls(tmp_path)
    at = commit_point(log)
    made = tmp_path / "store"
    for failing in (at, at + 1):
        shutil.rmtree(made, ignore_errors=True)
        made_store("own", made)
        before = bodies(made)
        error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(MqStoreError) as caught, stopped_at(failing, error=error, lasting=True):
            write(made, NEW_ROWS)
        assert "\n" not in str(caught.value)
        assert (made / "commitlog" / GUARD).exists()
        assert bodies(made) == before
        write(made, rows(1, 900))
        whole = "committed" in str(caught.value)
        assert len(bodies(made)) == len(before) + 1 + (NEW_ROWS.num_rows if whole else 0)
