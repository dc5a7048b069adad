"""A separate Spark driver that writes one job after another: `python -m tests.real.spark_writer STORE`.

It prints a line when it is ready and after each job, and starts a job for each line that it reads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
ROWS = 3_000
TASKS = 3
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 500,
    "maxIndexNum": 3_000,
}  # fmt: skip
OPTIONS = {
    "commitLogFileSize": "1048576", "consumeQueueFileEntries": "1000", "indexSlots": "500", "indexEntries": "3000",
    "queues": "8",
}  # fmt: skip


def write_job(spark: SparkSession, path: str, job: int) -> None:
    """Appends the rows of a job: every body and every key names job and row."""
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr(
        "if(id % 3 = 0, 'orders', 'audit') as topic",
        f"concat('job {job} row ', id, ' ', repeat('x', int(id * 37 % 1800))) as body",
        f"concat('k-{job}-', id, ' all-{job}') as key",
        "if(id % 2 = 0, 'even', null) as tags",
    )
    rows.write.format("mqstore").mode("append").options(**OPTIONS).save(path)


def main(path: str) -> None:
    """Runs until stdin ends, or until it is killed."""
    spark = session()
    print("ready", flush=True)
    for line in sys.stdin:
        write_job(spark, path, int(line))
        print(int(line), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
