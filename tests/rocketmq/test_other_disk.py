"""A log on another disk than the rest of the store (commitLogPath), as brokers often have it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from connector.batch_writer import store_to_write
from connector.planning import Load
from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError, OptionError, StoreLockedError, StoreNotFoundError
from storage_core.files.lock import FolderLock
from storage_core.option_table import read_options, write_options
from storage_core.rocketmq.write.commit_point import GUARD
from storage_core.store import Mode, ScanRequest
from tests.command_line.calls import lines, run
from tests.faults import Died, stopped_at
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, commit_point, contents, rows

DISKS = ("/dev/shm", "/tmp", "/var/tmp", str(Path(__file__).parent))
"""At least one of these is on another disk than a test's folder: one keeps files in memory, the last one does not."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """A folder for the log that is on another disk than `tmp_path`."""
    disk = next(each for each in DISKS if Path(each).stat().st_dev != tmp_path.stat().st_dev)
    folder = Path(tempfile.mkdtemp(dir=disk, prefix="mqstore-other-disk-"))
    yield folder / "commitlog"
    shutil.rmtree(folder)


def write(store: Path, log: Path | str, **options: str) -> int:
    with open_store(str(store), engine="rocketmq", commitLogPath=str(log), **GEOMETRY, **options) as opened:
        return opened.append(NEW_ROWS)


def test_a_new_store_is_written_and_appended_to(tmp_path: Path, log: Path) -> None:
    store = tmp_path / "store"
    for count in (1, 2, 3):
        assert write(store, log) == len(NEW_ROWS)
        with open_store(str(store), commitLogPath=str(log)) as opened:
            found = pa.Table.from_batches(opened.snapshot().read(ScanRequest()))
            assert list(opened.verify()) == []
        assert len(found) == count * len(NEW_ROWS)
    assert not (store / "commitlog").exists()
    assert sorted(path.name for path in (store / ".mqstore").iterdir()) == ["lock", "state.json"]


@pytest.mark.parametrize("given", ["clog", "store/clog/", "./a,b/../c"])
def test_a_relative_path_means_the_same_folder_later(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to the writer that finishes a stopped job, in another working directory."""
    here, copy = tmp_path / "here", tmp_path / "copy"
    here.mkdir()
    meant = [here / each for each in {"./a,b/../c": ("a", "c")}.get(given, (given,))]
    whole = ",".join(map(str, meant))
    monkeypatch.chdir(here)
    write(Path("store"), given)
    shutil.copytree(here, copy)
    monkeypatch.chdir(copy)
    with stopped_at(None) as clock:
        write(Path("store"), given)
    monkeypatch.chdir(here)
    with pytest.raises(Died), stopped_at(commit_point(clock.log) + 5):
        write(Path("store"), given)
    assert (here / "store" / ".mqstore" / "intent.json").exists()
    monkeypatch.chdir("/")
    write(here / "store", whole)
    with open_store(str(here / "store"), commitLogPath=whole) as opened:
        assert sum(queue.stop for queue in opened.queues()) == 3 * len(NEW_ROWS)
        assert list(opened.verify()) == []
    assert all(any(folder.iterdir()) for folder in meant)


def test_a_store_without_queues_is_its_log(tmp_path: Path, log: Path) -> None:
    """A broker builds lost queues anew from a log that lies elsewhere."""
    store = tmp_path / "store"
    write(store, log)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / ".mqstore")
    assert find_stores(str(store), commitLogPath=str(log)) == [str(store)]
    with Load([str(store)], read_options({"commitLogPath": str(log)})) as load:
        assert sum(batch.num_rows for piece in load.plan(("body",)) for batch in piece.read()) == len(NEW_ROWS)
    assert len(lines(run("cat", store, "--commit-log-path", log))) == len(NEW_ROWS)
    settings = {"commitLogPath": str(log), **{name: str(value) for name, value in GEOMETRY.items()}}
    with store_to_write(str(store), write_options(settings)) as target:
        target.begin_job(["topic", "body"], commitLogPath=str(log)).abort()
    new = tmp_path / "new.jsonl"
    new.write_text('{"topic": "orders", "body": "one more"}\n')
    given = [each for name, value in settings.items() for each in ("--set", f"{name}={value}")]
    assert run("import", new, store, *given).stderr == f"mqstore: 1 message written to {store}\n"
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / ".mqstore")
    with open_store(str(store), commitLogPath=str(log)) as opened:
        assert sum(queue.stop for queue in opened.queues()) == len(NEW_ROWS) + 1
    assert write(store, log) == len(NEW_ROWS)
    with open_store(str(store), commitLogPath=str(log)) as opened:
        assert sum(queue.stop for queue in opened.queues()) == 2 * len(NEW_ROWS) + 1
        assert list(opened.verify()) == []
    for path in (str(log), str(tmp_path / "nothing")):
        shutil.rmtree(log, ignore_errors=True)
        shutil.rmtree(store / "consumequeue", ignore_errors=True)
        with pytest.raises(StoreNotFoundError, match="no store lies here"):
            open_store(str(store), commitLogPath=path)


def test_what_is_cut_of_the_log_is_kept(tmp_path: Path, log: Path) -> None:
    """A file after the end of the log is moved to the folder for cut data, on the disk of the store."""
    store = tmp_path / "store"
    write(store, log)
    last = sorted(log.iterdir())[-1]
    torn = last.read_bytes()[:200].ljust(last.stat().st_size, b"\0")
    after = log / f"{int(last.name) + len(torn):020d}"
    after.write_bytes(b"\7" * len(torn))
    (store / ".mqstore" / "state.json").unlink()
    assert write(store, log) == len(NEW_ROWS)
    (kept,) = (path for path in (store / ".mqstore" / "cut").rglob(after.name))
    assert kept.read_bytes() == b"\7" * len(torn)
    with open_store(str(store), commitLogPath=str(log)) as opened:
        assert list(opened.verify()) == []


def test_a_first_file_without_a_length(tmp_path: Path, log: Path) -> None:
    """A crash between creating the first file of the log and setting its length."""
    log.mkdir()
    (log / ("0" * 20)).touch()
    assert write(tmp_path / "store", log) == len(NEW_ROWS)
    with open_store(str(tmp_path / "store"), commitLogPath=str(log)) as opened:
        assert sum(batch.num_rows for batch in opened.snapshot().read(ScanRequest())) == len(NEW_ROWS)
        assert list(opened.verify()) == []


def test_a_repair_in_place(tmp_path: Path, log: Path) -> None:
    """A file of the log is missing, and there is a file that does not belong to it, both on the other disk."""
    store = tmp_path / "store"
    write(store, log)
    first, second = sorted(log.iterdir())[:2]
    second.unlink()
    (log / "notes.txt").write_text("no file of the log")
    with open_store(str(store), commitLogPath=str(log)) as opened:
        before = pa.Table.from_batches(opened.snapshot().read(ScanRequest(mode=Mode.DROPMALFORMED)))
        assert {finding.kind for finding in opened.verify()} >= {"missing log file", "unexpected file"}
        opened.repair()
        left = [finding.kind for finding in opened.verify()]
        after = pa.Table.from_batches(opened.snapshot().read(ScanRequest()))
    assert left == []
    assert second.stat().st_size == first.stat().st_size
    assert not (log / "notes.txt").exists()
    assert 0 < len(before) < len(NEW_ROWS)
    assert len(after) == len(before)


def two_folders(tmp_path: Path, count: int) -> tuple[Path, Path, Path]:
    """A store whose log files lie in two folders in turn."""
    folders = tmp_path / "one", tmp_path / "two"
    with open_store(str(tmp_path / "store"), engine="rocketmq", commitLogPath=",".join(map(str, folders))) as store:
        store.append(rows(count), **GEOMETRY)
    return tmp_path / "store", *folders


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("count", [60, 90])
def test_a_folder_of_the_log_that_is_not_named_is_asked_for(
    count: int, which: int, noted: bool, tmp_path: Path
) -> None:
    """The last file is in either folder: without it, a write would use the addresses of its messages again."""
    store, *folders = two_folders(tmp_path, count)
    if not noted:
        shutil.rmtree(store / ".mqstore")
    before = contents(store)
    with pytest.raises(OptionError, match=r"'commitLogPath' = .* is missing between the log files here; name every"):
        write(store, folders[which])
    assert {name: value for name, value in contents(store).items() if "mqstore" not in name} == {
        name: value for name, value in before.items() if "mqstore" not in name
    }
    assert write(store, ",".join(map(str, folders))) == len(NEW_ROWS)


@pytest.mark.parametrize("noted", [True, False])
def test_the_end_of_the_log_in_a_folder_that_is_not_named_is_asked_for(noted: bool, tmp_path: Path) -> None:
    """One file in each folder leaves no hole, but queues list what is in the second."""
    store, one, two = two_folders(tmp_path, 20)
    assert [len(list(folder.iterdir())) for folder in (one, two)] == [1, 1]
    if not noted:
        shutil.rmtree(store / ".mqstore")
    with pytest.raises(OptionError, match=r"lists a message at \d+, and the log here ends at 4096; name every folder"):
        write(store, one)
    assert write(store, f"{one},{two}") == len(NEW_ROWS)


@pytest.mark.parametrize("step", ["guard", "draft"])
def test_a_guard_is_removed_in_whichever_folder_it_is(step: str, tmp_path: Path) -> None:
    """The folders of the log are named in another order by the writer after the one that was stopped."""
    store, one, two = two_folders(tmp_path / "counted", 60)
    with stopped_at(None) as clock:
        write(store, f"{one},{two}")
    first = next(at for at, call in enumerate(clock.log) if GUARD in call)
    store, one, two = two_folders(tmp_path / "stopped", 60)
    with pytest.raises(Died), stopped_at(first + 3 if step == "guard" else commit_point(clock.log) - 1):
        write(store, f"{one},{two}")
    assert (one / GUARD).exists()
    assert not (store / ".mqstore" / "intent.json").exists()
    assert write(store, f"{two},{one}") == len(NEW_ROWS)
    assert not (one / GUARD).exists()
    with open_store(str(store), commitLogPath=f"{two},{one}") as opened:
        assert list(opened.verify()) == []


def test_two_stores_with_one_log_do_not_write_at_once(tmp_path: Path) -> None:
    """Each has its own writers' lock, so they also lock the folder of the log."""
    log, stores = tmp_path / "log", (tmp_path / "one", tmp_path / "two")
    write(stores[0], log)
    held = FolderLock(str(log), 0, "this test")
    with pytest.raises(StoreLockedError, match=f"{log} is locked by a write of mqstore into a store with the same log"):
        write(stores[1], log, lockTimeout="0ms")
    threads = [Thread(target=write, args=(store, log)) for store in stores]
    for thread in threads:
        thread.start()
    held.close()
    for thread in threads:
        thread.join()
    for store in stores:
        with open_store(str(store), commitLogPath=str(log)) as opened:
            assert sum(queue.stop for queue in opened.queues()) == 3 * len(NEW_ROWS)


def test_a_refused_write_leaves_no_folder_for_its_log(tmp_path: Path) -> None:
    """The folder is made to be locked."""
    store, log = tmp_path / "store", tmp_path / "log"
    write(store, tmp_path / "real")
    with pytest.raises(MqStoreError, match="has queues and no commit log"):
        write(store, log)
    assert not log.exists()
