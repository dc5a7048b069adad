"""Configuration shared by all tests: one Spark session per run, started by the first test that requests it; syncs that
do not wait for the disk; no deadline for generated cases; which tests start a JVM, and which of them share a process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from pyspark_mqstore import ensure_java
from storage_core.compiled import loading
from storage_core.files import system
from tests.support.long_modules import LONG
from tests.support.sampling import SEED, WHOLE
from tests.support.spark_session import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ROOT / "tests" / "support" / "spark_workers"
MEMORY, ENOUGH_BYTES = "/dev/shm", 4 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Seeds generated cases with the seed of the samples. Stores are written to memory if there is enough, because
    thousands are created and removed. Compiled loops are off by default: which loops decode must not depend on how
    much was decoded before.
    """
    os.environ.setdefault(loading.SETTING, "never")
    if not hasattr(config, "workerinput"):
        _forget_stale_loops()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED
    settings.register_profile("mqstore", deadline=None)
    settings.load_profile("mqstore")
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return
    enough = found.f_bavail * found.f_frsize > ENOUGH_BYTES and not found.f_flag & os.ST_NOEXEC
    if enough and "real" not in str(config.option.markexpr).replace("not real", ""):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def _forget_stale_loops() -> None:
    """Removes stale compiled loops: a cached loop is replaced only when its own file changes, not when code that it
    inlines or a layout does.
    """
    core = ROOT / "storage_core"
    sources = [path.stat().st_mtime for part in ("formats", "compiled") for path in (core / part).rglob("*.py")]
    for kept in core.rglob("*.nb[ic]"):
        with suppress(FileNotFoundError):  # another run removes it
            if kept.stat().st_mtime < max(sources):
                kept.unlink()


def pytest_report_header() -> str:
    """The settings that reproduce the samples of this run."""
    return f"mqstore: seed {SEED} (MQSTORE_SEED), {'all cases' if WHOLE else 'samples (all: MQSTORE_WHOLE=1)'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports at how many points crash tests stopped, by kind."""
    points = Counter[str]()
    for report in terminalreporter.getreports("passed"):
        points.update(dict(report.user_properties).get("crash points", {}))
    if points:
        summary = ", ".join(f"{count} {kind}" for kind, count in points.items())
        terminalreporter.write_line(f"mqstore: {points.total()} crash points, all whole or absent: {summary}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that request the session or a Java, and so start a JVM, as `spark`, and modules that are too slow for
    `make test-fast` as `long`.
    """
    for item in items:
        if item.nodeid.partition("::")[0] in LONG:
            item.add_marker(pytest.mark.long)
        if {"spark", "java"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Lets one process own the Spark session when tests run with `-n 2`."""
    from tests.support.two_processes import OneSession

    return OneSession(config, log)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_kept_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever mqstore caches about a store for later processes goes to a folder private to this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kept")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Syncs of this process only check their argument: data that the operating system holds outlives the process.

    Tests against the real systems do sync. Which syncs are issued and what they confirm is tested by
    `tests.lost_writes`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker("real") for item in request.session.items):
            patch.setattr(system, "fsync", _synced)
            patch.setattr(system, "sync_folder", _synced)
        yield


def _synced(file: int | str) -> None:
    os.stat(file)


@pytest.fixture(scope="session")
def java() -> str:
    """JAVA_HOME, for tests that start a JVM of their own."""
    return ensure_java()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, a JIT compiler that starts fast. Tests must restore any setting that they change."""
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers import this checkout whether or not it is installed in the environment.
    paths = [str(WORKERS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("mqstore tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", QUICK_JAVA)
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
