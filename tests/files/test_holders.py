"""Which other processes have a file open: a lock with its own descriptor asks the kernel first, with equal results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_core.files import processes
from storage_core.files.lock import FileLock


@contextmanager
def opened_elsewhere(path: Path, how: str) -> Iterator[int]:
    """Another process that has the file open; its number."""
    program = f"import sys; file = open({str(path)!r}, {how!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield other.pid


@pytest.mark.parametrize("how", ["rb", "r+b"])
def test_another_process_is_seen(tmp_path: Path, how: str) -> None:
    path = tmp_path / "lock"
    path.touch()
    with FileLock(str(path), 0, "nobody") as lock:
        assert lock.other_holders() == []
        with opened_elsewhere(path, how) as other:
            assert lock.other_holders() == [other] == processes.holders(str(path))
        assert lock.other_holders() == []


def test_nobody_is_looked_for_where_the_kernel_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspecting every process would take milliseconds at each commit."""
    with FileLock(str(tmp_path / "lock"), 0, "nobody") as lock:
        monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
        assert lock.other_holders() == []


def test_a_second_descriptor_of_this_process_is_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(str(path), 0, "nobody") as lock, path.open("rb"):
        assert lock.other_holders() == []


def test_a_file_system_without_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    path = tmp_path / "lock"
    with FileLock(str(path), 0, "nobody") as lock, opened_elsewhere(path, "rb") as other:
        monkeypatch.setattr("fcntl.fcntl", refused)
        assert lock.other_holders() == [other]


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, readlink, closed = tmp_path / "segment", os.readlink, "/fd/0"

    def late(link: str) -> str:
        if link.endswith(closed):
            raise FileNotFoundError(2, "No such file or directory", link)
        return readlink(link)

    path.touch()
    with opened_elsewhere(path, "rb") as other:
        monkeypatch.setattr(os, "readlink", late)
        assert processes.holders_below(str(tmp_path), "none") == [other]


def test_files_of_a_subfolder_may_not_count(tmp_path: Path) -> None:
    path = tmp_path / "own" / "staged"
    path.parent.mkdir()
    path.touch()
    with opened_elsewhere(path, "rb") as other:
        assert processes.holders_below(str(tmp_path), "none") == [other]
        assert processes.holders_below(str(tmp_path), "own") == []
