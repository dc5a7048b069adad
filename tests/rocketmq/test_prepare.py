"""What a write finds in a store before it changes it: damage that it must not touch, leftover files of crashes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, MqStoreError, UnsupportedFormatError
from storage_core.store import Scan, ScanRequest
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.reference.served import read
from tests.support.rocketmq_files import log_files, queue_files
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, bodies, commit_point, contents, made_store, rows, write


def test_intact_records_after_the_end_are_named_before_anything_else(tmp_path: Path) -> None:
    """Even if the index files have a geometry that nothing explains."""
    directory = archive.unpack("damaged-flipped-body-late-4.9.3", tmp_path)
    (directory / "index").mkdir(exist_ok=True)
    (directory / "index" / "20991114221320000").write_bytes(bytes(999))
    before = contents(directory)
    with pytest.raises(CorruptionError, match="an intact record lies here"):
        write(directory, rows(3))
    assert contents(directory) == before


def test_an_index_file_of_unknown_geometry_is_named_with_what_to_do(tmp_path: Path) -> None:
    directory = made_store("own", tmp_path / "store")
    shutil.rmtree(directory / ".mqstore")
    for path in (directory / "index").iterdir():
        path.write_bytes(bytes(6244))
    before = contents(directory)
    with pytest.raises(UnsupportedFormatError, match=r"6244 bytes .* to a file; give its maxHashSlotNum") as caught:
        write(directory, rows(3))
    assert "5000000" not in str(caught.value), "what nobody gave is not named"
    with pytest.raises(UnsupportedFormatError, match="indexSlots=5 with indexEntries=6 means 180 bytes; give"):
        write(directory, rows(3), indexSlots=5, indexEntries=6)
    assert contents(directory) == before


def test_queue_files_of_unknown_length_are_asked_for(tmp_path: Path) -> None:
    """A broker does not load a store with queue files of another length than its own."""
    directory = archive.unpack("damaged-queues-lost-4.9.3", tmp_path)
    before = contents(directory)
    with pytest.raises(
        UnsupportedFormatError, match="mappedFileSizeConsumeQueue / 20 as option consumeQueueFileEntries"
    ):
        write(directory, rows(3))
    assert contents(directory) == before
    write(directory, rows(3), consumeQueueFileEntries=50)
    write(directory, rows(3, 3))
    assert {path.stat().st_size for path in (directory / "consumequeue").rglob("0*") if path.is_file()} == {1000}


def test_an_empty_file_in_the_way_gets_its_full_length(tmp_path: Path) -> None:
    """A broker rejects a store with a log file that is too short; a job that fails restores the empty one."""
    directory = tmp_path / "store"
    write(directory, rows(5), queues=1, **GEOMETRY)
    empty = [directory / "commitlog" / f"{4096:020d}", directory / "consumequeue" / "orders" / "0" / f"{200:020d}"]
    for path in empty:
        path.touch()
    before = contents(directory)
    shutil.copytree(directory, tmp_path / "counted")
    with stopped_at(None) as clock:
        write(tmp_path / "counted", rows(60, 5))
    intent = commit_point(clock.log)
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(MqStoreError, match="nothing was written"), stopped_at(intent, error=full):
        write(directory, rows(60, 5))
    assert contents(directory) == before

    write(directory, rows(60, 5))
    assert [path.stat().st_size for path in sorted((directory / "commitlog").iterdir())] == [4096] * 5
    assert {path.stat().st_size for path in (directory / "consumequeue").rglob("0*") if path.is_file()} == {200}
    assert len(bodies(directory)) == 65


@pytest.mark.parametrize("noted", [True, False])
def test_a_file_that_a_copy_cut_short_gets_its_full_length(noted: bool, tmp_path: Path) -> None:
    """No broker loads the store before that; a job that fails leaves the file as short as it was."""
    directory = tmp_path / "store"
    write(directory, rows(60), queues=1, **GEOMETRY)
    log = sorted((directory / "commitlog").iterdir())[-1]
    queue = sorted((directory / "consumequeue" / "orders" / "0").iterdir())[-1]
    for path in (log, queue):
        os.truncate(path, len(path.read_bytes().rstrip(b"\0")) + (100 if path == log else 0))
    if not noted:
        shutil.rmtree(directory / ".mqstore")
    before = contents(directory)
    shutil.copytree(directory, tmp_path / "counted")
    with stopped_at(None) as clock:
        write(tmp_path / "counted", rows(1, 60))
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(MqStoreError, match="nothing was written"), stopped_at(commit_point(clock.log), error=full):
        write(directory, rows(1, 60))
    assert contents(directory) == before

    write(directory, rows(1, 60))
    assert (log.stat().st_size, queue.stat().st_size) == (4096, 200)
    assert len(bodies(directory)) == 61


def test_a_scan_of_the_log_sees_nothing_of_an_unfinished_job(tmp_path: Path) -> None:
    """From the intent to the end of publishing, whatever the log contains by then."""
    directory = made_store("own", tmp_path / "store")
    request = ScanRequest(scan=Scan.LOG, columns=("body",))
    before = read(directory, request)
    counted = made_store("own", tmp_path / "counted")
    with stopped_at(None) as clock:
        write(counted, NEW_ROWS)
    intent = commit_point(clock.log)
    finished = next(number for number, call in enumerate(clock.log) if call.startswith("rename") and "state" in call)
    with pytest.raises(Died), stopped_at((intent + finished) // 2):
        write(directory, NEW_ROWS)
    assert any(b"body 100 " in path.read_bytes() for path in (directory / "commitlog").iterdir())
    assert read(directory, request) == before
    with open_store(str(directory)) as store:
        store.append(rows(1, 900))
    assert len(read(directory, request)) == len(before) + NEW_ROWS.num_rows + 1


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_log_file_that_is_longer_than_the_others_is_refused(noted: bool, number: int, tmp_path: Path) -> None:
    """A broker does not load the store; a repair gives the file its length."""
    directory = made_store("own", tmp_path / "store")
    if not noted:
        shutil.rmtree(directory / ".mqstore")
    path = log_files(directory)[number]
    with path.open("ab") as file:
        file.write(bytes(20))
    before = contents(directory)
    with pytest.raises(CorruptionError, match=rf"{path} at 4096: the file has 4,116 bytes, the others 4,096; a broker"):
        write(directory, rows(3), **GEOMETRY)
    assert contents(directory) == before
    with open_store(str(directory)) as store:
        list(store.repair())
    assert write(directory, rows(3), **GEOMETRY) == 3


def test_the_only_log_file_is_compared_with_what_the_last_write_noted(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(3), **GEOMETRY)
    with log_files(directory)[0].open("ab") as file:
        file.write(bytes(20))
    with pytest.raises(CorruptionError, match="the file has 4,116 bytes, the others 4,096; a broker does not load"):
        write(directory, rows(3))


@pytest.mark.parametrize("noted", [True, False])
def test_a_queue_file_that_is_longer_than_the_others_is_refused(noted: bool, tmp_path: Path) -> None:
    """It once gave its length to the files of other queues, and then no broker loaded any of them."""
    directory = made_store("own", tmp_path / "store")
    if not noted:
        shutil.rmtree(directory / ".mqstore")
    path = queue_files(directory)[0]
    with path.open("ab") as file:
        file.write(bytes(20))
    with pytest.raises(CorruptionError, match=rf"{path} at 200: the file has 220 bytes, the others 200; a broker"):
        write(directory, rows(40), **GEOMETRY)
    assert {each.stat().st_size for each in queue_files(directory)} == {200, 220}
