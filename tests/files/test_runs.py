"""Reads of many runs of files at once: single calls and the compiled loop return the same, for any runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.compiled import loading
from storage_core.errors import DiskError
from storage_core.files import system

SIZE = 70
RUNS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, SIZE + 10), st.integers(0, 1)), max_size=9
)
"""Start, size, position, and which of two files."""


@pytest.fixture(params=["never", "always"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "process", loading.Process(request.param))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(RUNS)
def test_each_run_is_read_up_to_the_first_beyond_the_file(
    tmp_path: Path, runs: list[tuple[int, int, int, int]]
) -> None:
    files, descriptors = (bytes(range(1, SIZE + 1)), bytes(range(101, SIZE + 91))), []
    for number, data in enumerate(files):
        (tmp_path / str(number)).write_bytes(data)
        descriptors.append(system.open_read(str(tmp_path / str(number))))
    starts, sizes, positions, numbers = np.array(runs, np.int64).reshape(-1, 4).T
    target, wanted, ended = np.zeros(72, np.uint8), np.zeros(72, np.uint8), None
    for row, (start, size, position, number) in enumerate(runs):
        part = np.frombuffer(files[number][position : position + size], np.uint8)
        wanted[start : start + len(part)] = part
        if len(part) < size:
            ended = row, len(part)
            break
    of_runs = np.array(descriptors)[numbers]
    assert system.pread_runs(of_runs, target, starts, starts + sizes, positions) == ended
    for descriptor in descriptors:
        system.close(descriptor)
    assert target.tobytes() == wanted.tobytes()


def test_an_error_of_the_system_is_reported_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    descriptor = system.open_read(str(tmp_path / "folder"))
    with pytest.raises(DiskError, match="folder"):
        system.pread_runs(np.full(2, descriptor), np.zeros(9, np.uint8), *np.array([[0, 4], [4, 9], [0, 4]]))
    system.close(descriptor)
