"""The commit protocol: a writer that dies at any step leaves the job whole or absent, an error leaves nothing.

`make test` tries some of the steps of a commit, `make test-real-full` every one.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError, StoreLockedError
from storage_core.files.lock import FileLock
from storage_core.rocketmq.write import staging
from storage_core.store import Scan, ScanRequest
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support.rocketmq_writes import (
    GEOMETRY,
    KINDS,
    NEW_ROWS,
    STEPS,
    bodies,
    commit_point,
    contents,
    made_store,
    options_of,
    rows,
    write,
)
from tests.support.sampling import first_step

pytestmark = pytest.mark.sampled


def steps(name: str, total: int, distance: int) -> range:
    """The numbers of the calls to stop at: every STEPS-th of every `distance`-th call; the seed chooses the first."""
    return range(first_step(distance * STEPS, name), total, distance * STEPS)


def calls_of(kind: str, tmp_path: Path) -> tuple[int, list[Any], list[Any]]:
    """The number of changing calls of a write, and the messages before and after it."""
    directory = made_store(kind, tmp_path / "counted")
    before = bodies(directory)
    with stopped_at(None) as clock:
        write(directory, NEW_ROWS, **options_of(kind))
    return clock.count, before, bodies(directory)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_dying_at_every_step_leaves_the_job_whole_or_absent(kind: str, torn: bool, tmp_path: Path) -> None:
    total, before, after = calls_of(kind, tmp_path)
    assert len(after) == len(before) + NEW_ROWS.num_rows
    original = made_store(kind, tmp_path / "original")
    outcomes = []
    # A sample of the steps; of torn writes, half as many.
    for last in steps(f"{kind} {torn}", total, 2 if torn else 1):
        directory = tmp_path / "dies" / "store"
        if original.exists():
            shutil.copytree(original, directory)
        with pytest.raises(Died), stopped_at(last, torn):
            write(directory, NEW_ROWS, **options_of(kind))
        seen = bodies(directory)
        committed = (directory / ".mqstore" / "intent.json").exists()
        if seen != after:
            assert seen == before, f"a reader sees half a job after {last} of {total} calls"
        write(directory, rows(1, 900), **options_of(kind))
        end = [row for row in bodies(directory) if not row[3].startswith(b"body 900 ")]
        assert end in (before, after), f"half a job after {last} of {total} calls"
        if committed or seen == after:
            assert end == after, f"a committed job was lost after {last} of {total} calls"
        if end == after:
            assert len([r for r in read(directory, in_partitions(1, keys=("all",), **AS_BROKER))
                        if r["body"].startswith(b"body 1") and r["key"] == f"k{r['body'].split()[1].decode()} all"
                        and int(r["body"].split()[1]) >= 100]) == 60  # fmt: skip
        outcomes.append(end == after)
        assert not (directory / "commitlog" / "mqstore-unfinished-write").exists()
        assert not (directory / ".mqstore" / "intent.json").exists()
        assert not any((directory / ".mqstore" / "staging").glob("*/new"))
        shutil.rmtree(directory)
    assert outcomes == sorted(outcomes), "whole, then absent again"
    assert True in outcomes
    assert False in outcomes


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_at_any_step_before_the_commit_point_leaves_every_file_as_it_was(kind: str, tmp_path: Path) -> None:
    total, _, after = calls_of(kind, tmp_path)
    original = made_store(kind, tmp_path / "original")
    failed = 0
    for last in steps(kind, total, 1):
        directory = tmp_path / "fails" / "store"
        if original.exists():
            shutil.copytree(original, directory)
        there = contents(directory)
        full = OSError(errno.ENOSPC, "No space left on device")
        try:
            with stopped_at(last, error=full):
                write(directory, NEW_ROWS, **options_of(kind))
        except (MqStoreError, OSError) as error:
            if "committed" in str(error):
                write(directory, rows(1, 900), **options_of(kind))
                assert len(bodies(directory)) == len(after) + 1
            else:
                failed += 1
                assert contents(directory) == there, f"call {last} of {total}: {error}"  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017
        else:
            assert bodies(directory) == after
        shutil.rmtree(directory, ignore_errors=True)
    assert failed > 4


def test_a_copy_of_an_unfinished_store_is_finished_in_the_copy(tmp_path: Path) -> None:
    store, copy = made_store("own", tmp_path / "store"), tmp_path / "elsewhere" / "copy"
    with stopped_at(None) as clock:
        write(shutil.copytree(store, tmp_path / "counted"), NEW_ROWS)
    last = commit_point(clock.log) + 3
    with pytest.raises(Died), stopped_at(last):
        write(store, NEW_ROWS)
    shutil.copytree(store, copy)
    before = contents(store)

    write(copy, rows(1, 900))

    assert contents(store) == before
    assert len(bodies(copy)) == 47 + NEW_ROWS.num_rows + 1


@pytest.mark.parametrize("most_kept", [0, staging.MOST_KEPT])
def test_a_full_disk_while_staging_is_one_line(most_kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the records staged, once with the rows kept in memory."""
    monkeypatch.setattr(staging, "MOST_KEPT", most_kept)
    directory = tmp_path / "store"
    write(directory, rows(3), **GEOMETRY)
    with stopped_at(None) as clock:
        write(directory, rows(3))
    first = next(n for n, call in enumerate(clock.log) if ".dispatch" in call)
    assert any(".records" in call for call in clock.log) == (not most_kept)
    for last in (first, first + 4, first + 6):
        shutil.rmtree(directory)
        write(directory, rows(3), **GEOMETRY)
        full = OSError(errno.ENOSPC, "No space left on device")
        there = contents(directory)
        with (
            pytest.raises(MqStoreError, match="No space left on device; nothing was written"),
            stopped_at(last, error=full),
        ):
            write(directory, rows(3))
        assert contents(directory) == there


def test_a_second_writer_waits_and_gives_up_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "store", rows(3), **GEOMETRY)
    before = contents(tmp_path / "store")
    with (
        FileLock(str(tmp_path / "store" / ".mqstore" / "lock"), 0, "a test"),
        pytest.raises(StoreLockedError, match="locked"),
    ):
        write(tmp_path / "store", rows(3), lockTimeout="200ms")
    with FileLock(str(tmp_path / "store" / "lock"), 0, "a test"), pytest.raises(StoreLockedError, match="locked"):
        write(tmp_path / "store", rows(3))
    assert contents(tmp_path / "store") == before
    assert write(tmp_path / "store", rows(3)) == 3


def test_a_job_begins_while_another_writer_commits_and_is_not_in_its_way(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(3), **GEOMETRY)
    with FileLock(str(directory / ".mqstore" / "lock"), 0, "a test"), FileLock(str(directory / "lock"), 0, "a test"):
        with open_store(str(directory)) as store:
            job = store.begin_job()
        part = job.stage(iter(rows(3, 10).to_batches()))
    assert job.commit([part]) == 3
    assert len(bodies(directory)) == 6


def test_a_version_is_written_once(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    assert write(directory, rows(3), txnAppId="a", txnVersion=1, **GEOMETRY) == 3
    assert write(directory, rows(3), txnAppId="a", txnVersion=1) == 0
    assert write(directory, rows(3), txnAppId="b", txnVersion=1) == 3
    assert write(directory, rows(3), txnAppId="a", txnVersion=2) == 3
    assert write(directory, rows(3), txnAppId="a", txnVersion=1) == 0
    assert len(bodies(directory)) == 9


def test_the_state_is_trusted_only_while_nobody_else_wrote(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(5), **GEOMETRY)
    log = directory / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end : end + 40] = b"\x01" * 40
    log.write_bytes(data)

    write(directory, rows(5, 10))

    assert len(bodies(directory)) == 10
    kept = [path for path in (directory / ".mqstore" / "cut").rglob("*") if path.is_file()]
    assert [path.read_bytes()[:41].strip(b"\0") for path in kept] == [b"\x01" * 40]


def test_intact_records_after_the_end_refuse_the_job(tmp_path: Path) -> None:
    directory = archive.unpack("damaged-flipped-body-late-4.9.3", tmp_path)
    before = contents(directory)
    with pytest.raises(MqStoreError, match="mqstore repair STORE --to DIR`, or read the store with scan=log"):
        write(directory, rows(3))
    assert contents(directory) == before


def test_log_scan_finds_every_row(tmp_path: Path) -> None:
    write(tmp_path / "store", rows(50), **GEOMETRY)
    write(tmp_path / "store", rows(50, 50))
    got = read(tmp_path / "store", ScanRequest(scan=Scan.LOG))
    assert [int(row["body"].split()[1]) for row in got] == list(range(100))
