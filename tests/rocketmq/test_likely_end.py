"""A hint of where a walk of the log probably ends makes it read less, and never changes its result."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import open_store
from storage_core.files.file_chain import FileChain, find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.rocketmq.disk.commit_log import Checks, FileWalk

FILE_SIZE = 64 << 10


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> FileChain:
    """Two files, the first one full."""
    path = tmp_path_factory.mktemp("log") / "store"
    bodies = [bytes(1 + number % 7 * 100) for number in range(200)]
    with open_store(str(path), "rocketmq") as store:
        store.append({"topic": ["t"] * 200, "body": bodies}, commitLogFileSize=FILE_SIZE)
    _damage(path)
    found = find_chain([str(path / "commitlog")])
    assert len(found.files) == 2
    return found


def _damage(path: Path) -> None:
    """Damages a body in the last file, so that it does not match its checksum."""
    last = max(path.glob("commitlog/*"))
    data = bytearray(last.read_bytes())
    data[len(bytes(data).rstrip(b"\0")) // 2] ^= 1
    last.write_bytes(data)


def walked(log: FileChain, number: int, likely_end: int, window_size: int) -> tuple[list[int], int, str]:
    with OpenFiles() as files:
        walk = FileWalk(log, files, log.files[number], log.bases[number], Checks(), window_size, likely_end=likely_end)
        found = [at for run in walk for at in run.physical_offsets.tolist()]
    return found, walk.end_offset, walk.reason.value


@given(st.integers(0, 1), st.integers(-10, 2 * FILE_SIZE + 10), st.sampled_from([100, 3000, 1 << 20]))
def test_any_likely_end_gives_the_same_walk(log: FileChain, number: int, likely_end: int, window_size: int) -> None:
    expected = walked(log, number, 0, 1 << 20)
    assert len(expected[0]) > 10
    assert walked(log, number, likely_end, window_size) == expected
