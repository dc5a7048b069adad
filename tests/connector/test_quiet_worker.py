"""Queries that stop early print no traceback of Spark's daemon; every other error is printed as before."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import types
from pathlib import Path

import pytest

from connector.quiet_worker import _Printer, expect_closed_connection

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


def _told(error: OSError | ValueError, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        raise error
    except (OSError, ValueError):
        _Printer(traceback).print_exc()
    return capsys.readouterr().err


def test_only_a_closed_connection_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(BrokenPipeError(32, "Broken pipe"), capsys) == ""
    assert _told(ConnectionResetError(104, "reset"), capsys) == ""
    assert "ValueError: a bug" in _told(ValueError("a bug"), capsys)
    assert "No space left" in _told(OSError(28, "No space left"), capsys)


def test_outside_sparks_daemon_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.traceback = traceback  # type: ignore[attr-defined]
    main.__spec__ = types.SimpleNamespace(name="pytest")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    expect_closed_connection()
    assert main.traceback is traceback  # type: ignore[attr-defined]
    main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    expect_closed_connection()
    assert isinstance(main.traceback, _Printer)  # type: ignore[attr-defined]
    assert main.traceback.format_exc is traceback.format_exc  # type: ignore[attr-defined]
