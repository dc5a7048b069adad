"""Stores in a real HDFS, Hadoop's own name node and data node: the same tables as on disk, and copies to local disk.

`MQSTORE_HDFS=1` runs it (`make test-real-full`): pyarrow needs libhdfs, which is compiled for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.hdfs_server import hdfs_server, reader_environment
from tests.support.libhdfs import libhdfs
from tests.support.remote_answers import SPARSE

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "MQSTORE_HDFS" not in os.environ, reason="compiles libhdfs; make test-real-full sets MQSTORE_HDFS"
    ),
]


def test_every_fixture_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "hadoop").mkdir()
    with hdfs_server(tmp_path / "hadoop") as server:
        call = [sys.executable, "-m", "tests.support.hdfs_reader", server.authority, str(tmp_path / "stores")]
        done = subprocess.run(
            call,
            env=reader_environment(server, str(libhdfs())),
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    equal = [line.removeprefix("EQUAL ") for line in lines if line.startswith("EQUAL ")]
    assert equal == [*(name for name in archive.names() if name != SPARSE), *golden.NAMES, "Spark"]
    errors = [line for line in lines if line.startswith("ERROR ")]
    assert "there is nothing at this address" in errors[0]
    assert "the name node does not answer" in errors[1]
    assert "mqstore does not write to HDFS" in errors[2]
