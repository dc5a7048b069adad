"""The verdict of one process on a store is kept for the next one, and used only for exactly the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage_core.files.stamp import Stamp
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.recovery import recovery, recovery_cache, verdict_file
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.verdict import Rules, Verdict
from tests.golden.archive import GOLDEN, fingerprint, names, unpack
from tests.support.replaced_stores import REPLACED, crashed_store

ROOT = GOLDEN.parents[1]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept verdicts; every walk is worth keeping, and every store has settled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(recovery_cache, "WORTH_KEEPING_S", -1)
    monkeypatch.setattr(verdict_file, "SETTLED_NS", -(10**18))
    return tmp_path / "cache" / "mqstore"


def fresh_verdict(store: Path, rules: Rules | None = None) -> Verdict:
    """The verdict that a new process finds."""
    recovery_cache._cache.clear()
    return recovery_cache.cached_verdict(list_store(str(store)), rules)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each walk."""
    found: list[int] = []
    walk = recovery._recover_log

    def counted(run: recovery._Simulation, overall: int) -> Verdict:
        found.append(overall)
        return walk(run, overall)

    monkeypatch.setattr(recovery, "_recover_log", counted)
    return found


@pytest.mark.parametrize("name", names())
def test_a_kept_verdict_is_the_verdict(tmp_path: Path, name: str, walks: list[int]) -> None:
    store = unpack(name, tmp_path)
    before = fingerprint(store)
    for rules in (None, Rules.V4, Rules.V5):
        first = fresh_verdict(store, rules)
        count = len(walks)
        assert fresh_verdict(store, rules) == first == recover(list_store(str(store)), rules)
        assert len(walks) == count + 1, "only the one of `recover`"
    assert fingerprint(store) == before


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("counts", [(300, 500), (400, 400)])
def test_a_store_replaced_under_the_same_path_is_walked(tmp_path: Path, how: str, counts: tuple[int, int]) -> None:
    """The files have the same names, sizes and times."""
    store, other = (
        crashed_store(tmp_path / name, size, count) for name, size, count in zip("ab", (90, 131), counts, strict=True)
    )
    expected = recover(list_store(str(other)))
    assert fresh_verdict(store).log_end != expected.log_end
    REPLACED[how](store, other)
    for path in store.rglob("*"):
        os.utime(path, ns=(1, 1))
    assert fresh_verdict(store) == expected


def _append(store: Path) -> None:
    """Appends a record as a broker writes it; callers that mimic a memory map restore the times."""
    listing = list_store(str(store))
    end = recover(listing).log_end
    path = Path(listing.log.files[0].path)
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    record = bytearray(data[:size])
    record[28:36] = end.to_bytes(8, "big")
    data[end : end + size] = record
    path.write_bytes(data)


def _truncate(store: Path) -> None:
    path = max((store / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)


def _flip(store: Path) -> None:
    with max((store / "commitlog").iterdir()).open("r+b") as file:
        file.seek(200)
        file.write(b"damage")


def _drop_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "orders")


def _mark(store: Path) -> None:
    (store / "abort").unlink()


@pytest.mark.parametrize("change", [_append, _truncate, _flip, _drop_queue, _mark])
def test_a_changed_store_is_walked(tmp_path: Path, change: Callable[[Path], None], walks: list[int]) -> None:
    store = crashed_store(tmp_path / "store", 90, 300)
    fresh_verdict(store)
    times = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    change(store)
    for path, modified in times.items():
        if path.exists():
            os.utime(path, ns=(modified, modified))
    expected = recover(list_store(str(store)))
    count = len(walks)
    assert fresh_verdict(store) == expected
    assert len(walks) == count + 1


def test_bytes_after_the_end_that_change_no_time_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walks: list[int]
) -> None:
    """A memory map changes bytes before it changes times."""
    store = crashed_store(tmp_path / "store", 90, 300)
    before = list_store(str(store))
    fresh_verdict(store)
    _append(store)
    recovery_cache._cache.clear()
    count = len(walks)
    assert recovery_cache.cached_verdict(before, None) == recover(before)
    assert len(walks) == count + 2


def test_files_that_are_no_kept_verdict_are_ignored(tmp_path: Path, kept: Path, walks: list[int]) -> None:
    store = crashed_store(tmp_path / "store", 90, 300)
    expected = fresh_verdict(store)
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    empty = [verdict_file._digest(text).encode() + b"\n" + text for text in (b"[]", b"{}", b"1")]
    changed = whole.replace(b"queues", b"qeuues")
    for wrong in (b"", b"\n", b"{}", whole[:-1], changed, b"\xff" + whole, whole[40:], *empty):
        path.write_bytes(wrong)
        count = len(walks)
        assert fresh_verdict(store) == expected
        assert len(walks) == count + 1
    assert path.read_bytes() == whole, "the walk keeps what it found"


def test_the_code_that_finds_verdicts_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walks: list[int]
) -> None:
    store = crashed_store(tmp_path / "store", 90, 300)
    fresh_verdict(store)
    for code in ([("recovery.py", Stamp(1, 2, 3, 4, 5))], []):
        monkeypatch.setattr(verdict_file, "_code", lambda code=code: iter(code))
        count = len(walks)
        fresh_verdict(store)
        assert len(walks) == count + 1


def test_a_folder_that_cannot_be_used_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = crashed_store(tmp_path / "store", 90, 300)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", "/dev/null", "/proc", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        monkeypatch.setenv("HOME", "/proc")
        fresh_verdict(store)
    monkeypatch.delenv("HOME")
    fresh_verdict(store)
    assert capfd.readouterr() == ("", "")


def test_a_young_store_is_not_kept(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_file, "SETTLED_NS", 10**12)
    fresh_verdict(crashed_store(tmp_path / "store", 90, 300))
    assert not kept.exists()


@pytest.mark.parametrize("young", ["commitlog/*", "consumequeue/*/*/*", "batchconsumequeue/*/*/*"])
def test_a_store_of_one_young_file_is_not_kept(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, young: str
) -> None:
    store = unpack("killed-5.3.3", tmp_path, "rocketmq/batched")
    newest_ns = max(path.stat().st_ctime_ns for path in store.rglob("*"))
    monkeypatch.setattr(verdict_file, "SETTLED_NS", 0)
    monkeypatch.setattr(verdict_file, "time", SimpleNamespace(time_ns=lambda: newest_ns))
    time.sleep(0.02)
    path = min(store.glob(young))
    path.touch()
    assert path.stat().st_ctime_ns > newest_ns
    fresh_verdict(store)
    assert not kept.exists()
    newest_ns = path.stat().st_ctime_ns
    fresh_verdict(store)
    assert list(kept.iterdir())


def test_old_files_go(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_file, "MOST_FILES", 2)
    for number in range(4):
        fresh_verdict(crashed_store(tmp_path / f"store-{number}", 90, 20))
    assert len(list(kept.iterdir())) == 2


def test_another_process_reads_what_one_kept(tmp_path: Path, kept: Path) -> None:
    store = crashed_store(tmp_path / "store", 90, 300)
    expected = fresh_verdict(store)
    script = (
        "import sys\n"
        "from storage_core.rocketmq.disk.directory import list_store\n"
        "from storage_core.rocketmq.recovery import recovery, recovery_cache\n"
        "recovery._recover_log = None\n"
        "print(recovery_cache.cached_verdict(list_store(sys.argv[1]), None).log_end)"
    )
    command = [sys.executable, "-c", script, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == f"{expected.log_end}\n", done.stderr
