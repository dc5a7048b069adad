"""A separate Spark driver for failure scenarios: tasks that fail and are retried, aborted jobs, workers that die, two
concurrent writers, a full disk. Run as `python -m tests.connector.hard_driver FOLDER SMALL_DISK`.

It prints one line per check: `name: ok`, or what went wrong. SMALL_DISK is a mounted disk of 8 MiB; every file that
this process and its children write is limited to 64 MiB. Spark retries a task only if the master URL says so, hence the
session that all tests share cannot be used.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from tests.golden import archive

SMALL = {"commitLogFileSize": "65536", "consumeQueueFileEntries": "50", "indexSlots": "51", "indexEntries": "200"}
FILE_LIMIT = 64 << 20
ROWS = 400


def failing(times: int, how: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that fails in the middle of the rows of partition 1, in its first `times` attempts."""

    def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if task.partitionId() == 1 and task.attemptNumber() < times:
                if how == "dies":
                    os._exit(3)
                raise RuntimeError("a task fails")
            yield batch.slice(half)

    return pieces


class Checks:
    """The checks; each has its own folder."""

    def __init__(self, spark: Any, folder: Path, small_disk: Path) -> None:
        self.spark, self.folder, self.small_disk = spark, folder, small_disk

    def frame(self, count: int = ROWS, start: int = 0, size: int = 20) -> Any:
        return self.spark.range(start, start + count, 1, 2).selectExpr(
            "'orders' as topic", f"concat('body ', id, ' ', repeat('x', {size})) as body", "concat('k', id) as key"
        )

    def save(self, frame: Any, path: Path, **options: str) -> None:
        frame.write.format("mqstore").mode("append").options(**SMALL | options).save(str(path))

    def numbers(self, path: Path) -> list[int]:
        rows = self.spark.read.format("mqstore").load(str(path)).select("body").collect()
        return sorted(int(row.body.split()[1]) for row in rows)

    def with_failures(self, path: Path, times: int, how: str, **options: str) -> None:
        frame = self.frame()
        self.save(frame.mapInArrow(failing(times, how), frame.schema), path, **options)

    def check_nothing_left(self, path: Path) -> None:
        assert not list(path.parent.glob(".*")), list(path.parent.glob(".*"))
        notes = path / ".mqstore"
        for store in [path] if notes.exists() else path.iterdir():
            found = sorted(each.name for each in (store / ".mqstore").iterdir())
            assert found == ["lock", "state.json"], found

    def check_retried(self, path: Path, how: str, **options: str) -> None:
        self.with_failures(path, 2, how, **options)
        assert self.numbers(path) == list(range(ROWS)), "not every row once"
        self.check_nothing_left(path)

    def check_refused(self, path: Path, words: str, write: Callable[[], None]) -> None:
        """Checks that the write fails with a line that contains these words, and leaves every file unchanged."""
        before = _files(path.parent)
        with pytest.raises(PySparkException) as caught:
            write()
        assert words in str(caught.value), str(caught.value)[:2000]
        assert _files(path.parent) == before, "files changed"

    # -- the checks

    def a_failed_task_is_retried(self, path: Path) -> None:
        self.check_retried(path, "fails")

    def a_dead_worker_is_retried(self, path: Path) -> None:
        self.check_retried(path, "dies")

    def shards_of_a_failed_task_are_retried(self, path: Path) -> None:
        self.check_retried(path, "fails", publish="shards")
        assert len(list(path.iterdir())) == 2

    def shards_of_a_dead_worker_are_retried(self, path: Path) -> None:
        self.check_retried(path, "dies", publish="shards")
        assert len(list(path.iterdir())) == 2

    def an_aborted_job_changes_nothing(self, path: Path) -> None:
        self.save(self.frame(10), path)
        self.check_refused(path, "a task fails", lambda: self.with_failures(path, 99, "fails"))
        self.check_nothing_left(path)

    def aborted_shards_leave_nothing(self, path: Path) -> None:
        self.check_refused(path, "a task fails", lambda: self.with_failures(path, 99, "fails", publish="shards"))
        assert not list(path.parent.iterdir())

    def two_writers_at_once_both_write(self, path: Path) -> None:
        self.save(self.frame(10), path)
        failures: list[BaseException] = []

        def write(number: int) -> None:
            try:
                jvm = self.spark._jvm
                jvm.org.apache.spark.sql.SparkSession.setActiveSession(self.spark._jsparkSession)
                for job in range(2):
                    self.save(self.frame(50, 1000 * number + 100 * job), path)
            except BaseException as error:  # noqa: BLE001 - told by the thread that waits
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        wanted = [*range(10), *(n + i for n in (1000, 1100, 2000, 2100) for i in range(50))]
        assert self.numbers(path) == wanted
        self.check_nothing_left(path)

    def a_disk_that_fills_while_staging_is_one_line(self, path: Path) -> None:
        self.on_full_disk(path, 6_000, "No space left on device; nothing was written")

    def a_disk_that_fills_while_preparing_is_one_line(self, path: Path) -> None:
        # The staged files fit, but a second copy as the log does not.
        self.on_full_disk(path, 2_400, "No space left on device; nothing was written")

    def on_full_disk(self, path: Path, count: int, words: str) -> None:
        disk = self.small_disk / path.parent.name / "store"
        disk.parent.mkdir()
        self.save(self.frame(10), disk)
        self.check_refused(disk, words, lambda: self.save(self.frame(count, size=2000), disk))
        self.save(self.frame(10, 10), disk)
        assert self.numbers(disk) == list(range(20))
        self.check_nothing_left(disk)

    def a_file_that_may_not_grow_is_one_line(self, path: Path) -> None:
        size = str(2 * FILE_LIMIT)
        self.check_refused(
            path, "File too large; nothing was written", lambda: self.save(self.frame(10), path, commitLogFileSize=size)
        )


NAMES = [name for name in vars(Checks) if name.startswith(("a_", "an_", "aborted", "shards", "two"))]


def _files(folder: Path) -> dict[str, tuple[int, str]]:
    """Length and digest of all files except the writers' lock, which a refused job may leave (interface.md 22)."""
    found = archive.fingerprint(folder)
    return {n: f[1:] for n, f in found.items() if (folder / n).is_file() and not n.endswith(".mqstore/lock")}


def main(folder: Path, small_disk: Path) -> None:
    """Runs all checks in one session."""
    from tests.support.spark_session import session

    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
    spark = session("local[2,3]")
    checks = Checks(spark, folder, small_disk)
    for name in NAMES:
        (folder / name).mkdir()
        try:
            getattr(checks, name)(folder / name / "store")
            print(f"{name}: ok", flush=True)
        except Exception as error:  # noqa: BLE001 - told to the test
            print(f"{name}: {type(error).__name__} {' '.join(str(error).split())[:3000]}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
