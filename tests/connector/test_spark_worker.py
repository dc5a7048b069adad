"""Queries that stop early print no traceback of Spark's daemon, while all other errors are still printed. Garbage
collections skip objects that earlier tasks loaded.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector import spark_worker
from connector.spark_worker import _Printer, prepare_worker

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys
from pyspark.sql import SparkSession
import pyspark_mqstore
path = sys.argv[1]
from tests.support.spark_session import QUICK_JAVA
builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", QUICK_JAVA)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
for frame in (spark.read.format("mqstore").load(path), pyspark_mqstore.read(spark, path)):
    frame.show(2)
    print("rows", len(frame.limit(3).collect()), len(frame.take(2)), frame.first() is not None, frame.isEmpty())
spark.stop()
"""


@pytest.mark.usefixtures("java")
def test_queries_that_stop_early_print_no_traceback(shop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, shop],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.stdout.count("rows 3 2 True False") == 2
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def _printed(error: OSError | ValueError, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        raise error
    except (OSError, ValueError):
        _Printer(traceback).print_exc()
    return capsys.readouterr().err


def test_only_a_closed_connection_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(BrokenPipeError(32, "Broken pipe"), capsys) == ""
    assert _printed(ConnectionResetError(104, "reset"), capsys) == ""
    assert "ValueError: a bug" in _printed(ValueError("a bug"), capsys)
    assert "No space left" in _printed(OSError(28, "No space left"), capsys)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A worker's `__main__` module, in this process."""
    main = types.ModuleType("__main__")
    main.traceback = traceback  # type: ignore[attr-defined]
    main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(spark_worker, "_frozen_modules", 0)
    assert gc.get_freeze_count() == 0
    yield main
    gc.unfreeze()


def test_outside_sparks_daemon_nothing_changes(daemon: types.ModuleType) -> None:
    daemon.__spec__ = types.SimpleNamespace(name="pytest")  # type: ignore[assignment]
    prepare_worker()
    assert daemon.traceback is traceback
    assert gc.get_freeze_count() == 0


def test_a_worker_prints_through_us(daemon: types.ModuleType) -> None:
    prepare_worker()
    assert isinstance(daemon.traceback, _Printer)
    assert daemon.traceback.format_exc is traceback.format_exc


def test_collections_leave_out_what_earlier_tasks_loaded(
    daemon: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept = [[number] for number in range(1000)]
    prepare_worker()
    assert gc.get_freeze_count() <= frozen, "no new module, and yet what this task holds was set aside"
    monkeypatch.setitem(sys.modules, "new_to_this_worker", daemon)
    prepare_worker()
    assert gc.get_freeze_count() > frozen + len(kept) // 2
