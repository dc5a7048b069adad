"""Writes whose tasks fail, die or run out of disk, and two concurrent writers, in a separate Spark driver."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connector.hard_driver import NAMES

ROOT = Path(__file__).resolve().parents[2]
# A mount namespace that ends with the driver, so that nothing stays mounted.
MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
CAN_MOUNT = subprocess.run([*MOUNTS, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def results(java: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The driver's result of each check."""
    folder, disk = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("small-disk")
    words = [sys.executable, "-m", "tests.connector.hard_driver", str(folder), str(disk)]
    shell = f"mount -t tmpfs -o size=8m tmpfs {shlex.quote(str(disk))} && exec {shlex.join(words)}"
    command = [*MOUNTS, "sh", "-c", shell] if CAN_MOUNT else words
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize("name", NAMES)
def test_hard_times(name: str, results: dict[str, str]) -> None:
    if "disk_that_fills" in name and not CAN_MOUNT:
        pytest.skip("nobody may mount a small disk here; test_commit.py has the full disk by injected errors")
    assert results.get(name) == "ok"
