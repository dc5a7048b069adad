"""The fault injector itself: it intercepts every call that changes the disk and injects the fault that was set."""

from __future__ import annotations

import ast
import errno
import inspect
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage_core.files import small_file, system
from tests.faults import CHANGES, NEITHER, READS, Died, Faults, short_transfers, stopped_at, struck
from tests.lost_writes import Change, confirmed, left_behind, recorded, survivors

CHANGING_CALLS = {
    "pwrite", "pwritev", "write", "writev", "sendfile", "copy_file_range", "splice", "fsync", "fdatasync", "sync",
    "ftruncate", "truncate", "posix_fallocate", "rename", "renames", "replace", "link", "symlink", "unlink", "remove",
    "mkdir", "makedirs", "rmdir", "removedirs", "utime", "chmod", "fchmod", "chown", "mknod", "mkfifo", "setxattr",
}  # fmt: skip
"""Functions of Python's `os` that change the content of a disk, or confirm a change."""


def functions() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(system))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def changes_the_disk(function: ast.FunctionDef) -> bool:
    """Whether the function calls such a function of `os`, or opens a file for more than reading."""
    taken = {ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return bool(taken & ({f"os.{name}" for name in CHANGING_CALLS} | {"os.O_RDWR", "os.O_WRONLY", "os.O_CREAT"}))


def test_every_function_of_the_system_is_in_one_list() -> None:
    public = [name for name in functions() if not name.startswith("_")]
    assert sorted([*CHANGES, *READS, *NEITHER]) == sorted(public)
    assert len(CHANGES) >= 11


def test_what_changes_the_disk_is_what_a_crash_test_counts() -> None:
    assert {name for name, function in functions().items() if changes_the_disk(function)} == set(CHANGES)
    assert not any(changes_the_disk(node) for node in ast.walk(ast.parse("def f():\n    os.pread(0, 1, 2)"))
                   if isinstance(node, ast.FunctionDef))  # fmt: skip


# -- stops and errors


def steps(folder: Path) -> None:
    """Six changes of the disk and some reads."""
    path = str(folder / "file")
    descriptor = system.open_write(path, create=True)
    try:
        system.pwrite(descriptor, b"0123456789", 0)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)
    system.close(system.open_write(path))
    system.names(str(folder))
    system.rename(path, path + "2")
    system.sync_folder(str(folder))
    system.unlink(path + "2")


def test_calls_are_counted_with_their_paths(tmp_path: Path) -> None:
    with stopped_at(None) as faults:
        steps(tmp_path)
    assert faults.count == 6
    assert [call.split()[0] for call in faults.log] == [
        "open_write", "pwrite", "fsync", "rename", "sync_folder", "unlink",
    ]  # fmt: skip
    assert faults.log[3] == f"rename {tmp_path}/file"
    assert not faults.struck


@pytest.mark.parametrize("last", range(6))
def test_a_process_dies_at_any_call(tmp_path: Path, last: int) -> None:
    stopped = []
    with pytest.raises(Died), stopped_at(last, on_stop=stopped.append) as faults:
        steps(tmp_path)
    assert faults.count == last + 1
    assert stopped == [faults.log[-1].split()[0]]
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    whole = b"0123456789"
    assert left == [{}, {"file": b""}, {"file": whole}, {"file": whole}, {"file2": whole}, {"file2": whole}][last]


def test_half_a_write_may_reach_the_disk(tmp_path: Path) -> None:
    with pytest.raises(Died), stopped_at(1, torn=True):
        steps(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"01234"


def test_the_dead_change_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()

    def tidy() -> None:
        try:
            steps(tmp_path)
        finally:
            system.unlink(str(tmp_path / "kept"))

    with pytest.raises(Died), stopped_at(2):
        tidy()
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE])
def test_one_call_fails_and_the_others_work(tmp_path: Path, code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)), stopped_at(3, error=OSError(code, os.strerror(code))):
        steps(tmp_path)
    with stopped_at(6, error=OSError(code, os.strerror(code))) as faults:
        steps(tmp_path)
    assert not faults.struck


def test_reading_calls_can_be_struck_as_well(tmp_path: Path) -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with struck(Faults(counted=READS)) as faults:
        steps(tmp_path)
    assert faults.log == [f"names {tmp_path}"]
    with pytest.raises(OSError, match=error.strerror), struck(Faults(0, error=error, counted=READS)):
        steps(tmp_path)


def test_everything_is_as_it_was_afterwards() -> None:
    before = dict(vars(system))
    with pytest.raises(Died), stopped_at(0):
        system.unlink("x")
    with short_transfers(1):
        pass
    assert vars(system) == before


def test_short_transfers_are_finished_by_the_system(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(20_000)
    with short_transfers(1, most=700) as transfers:
        descriptor = system.open_write(str(tmp_path / "file"), create=True)
        system.pwrite(descriptor, data, 0)
        target = bytearray(len(data))
        assert system.pread(descriptor, len(data) + 9, 0) == data
        assert system.pread_into(descriptor, memoryview(target), 0) == len(data)
        pieces = np.zeros(len(data), np.uint8)
        both = np.full(2, descriptor)
        assert system.pread_runs(both, pieces, *np.array([[0, 9_000], [9_000, 20_000], [0, 9_000]])) is None
        assert system.pread_runs(both, np.zeros(9, np.uint8), *np.array([[0, 5], [5, 9], [0, 19_998]])) == (1, 2)
        system.close(descriptor)
    assert transfers.count > 60
    assert bytes(target) == pieces.tobytes() == data == (tmp_path / "file").read_bytes()


# -- states after a power failure


def states(work: Callable[[str], None], folder: Path) -> set[bytes | None]:
    """The possible contents of `folder/now/file`, initially b"old", after a power failure at any moment of the work."""
    (folder / "now").mkdir()
    (folder / "now" / "file").write_bytes(b"old")
    os.makedirs(folder / "before")
    (folder / "before" / "file").write_bytes(b"old")
    with recorded(folder / "now") as changes:
        work(str(folder / "now" / "file"))
    found: set[bytes | None] = set()
    for number, (_, survives) in enumerate(survivors(changes, 7, choices=20)):
        left = left_behind(folder / "before", changes, survives, folder / f"left-{number}") / "file"
        found.add(left.read_bytes() if left.exists() else None)
    return found


def replaced(path: str, sync_file: bool) -> None:
    descriptor = system.open_write(path + ".tmp", create=True, exclusive=True)
    system.pwrite(descriptor, b"new", 0)
    if sync_file:
        system.fsync(descriptor)
    system.close(descriptor)
    system.rename(path + ".tmp", path)
    system.sync_folder(os.path.dirname(path))


def test_a_file_that_is_synced_before_it_is_renamed_is_old_or_new(tmp_path: Path) -> None:
    assert states(lambda path: replaced(path, sync_file=True), tmp_path) == {b"old", b"new"}


def test_one_that_is_not_may_be_empty(tmp_path: Path) -> None:
    assert states(lambda path: replaced(path, sync_file=False), tmp_path) == {b"old", b"new", b""}


def test_small_files_are_old_or_new(tmp_path: Path) -> None:
    assert states(lambda path: small_file.write_whole(path, b"new"), tmp_path) == {b"old", b"new"}


def test_writes_in_place_are_lost_and_reordered(tmp_path: Path) -> None:
    def work(path: str) -> None:
        descriptor = system.open_write(path)
        system.pwrite(descriptor, b"A", 0)
        system.pwrite(descriptor, b"B", 1)
        system.fsync(descriptor)
        system.pwrite(descriptor, b"C", 2)
        system.truncate(descriptor, 5)
        system.close(descriptor)

    wanted = {b"old", b"Ald", b"oBd", b"ABd", b"ABC", b"ABd\0\0", b"ABC\0\0"}
    assert states(work, tmp_path) == wanted


def test_what_a_sync_confirms() -> None:
    changes = [
        Change("open_write", "a/x", 0), Change("pwrite", "a/x", 0), Change("fsync", "a/x", 0),
        Change("rename", "a/x", target="b/y"), Change("sync_folder", "b"), Change("pwrite", "b/y", 0),
    ]  # fmt: skip
    assert confirmed(changes) == [False, True, True, False, True, False]
    assert confirmed([*changes, Change("sync_folder", "a")]) == [True, True, True, True, True, False, True]


def test_a_write_may_reach_the_disk_by_blocks(tmp_path: Path) -> None:
    (tmp_path / "now").mkdir()
    (tmp_path / "before").mkdir()
    with recorded(tmp_path / "now") as changes:
        descriptor = system.open_write(str(tmp_path / "now" / "file"), create=True)
        system.pwrite(descriptor, b"x" * 2000, 0)
        system.close(descriptor)
    sizes = {
        (left_behind(tmp_path / "before", changes, [True, True], tmp_path / str(seed), random.Random(seed)) / "file")
        .stat().st_size for seed in range(30)
    }  # fmt: skip
    assert sizes == {0, 512, 1024, 1536}
