"""Copies one topic out of a broken store into a new one: every record that is right, wherever in the log it lies.

python examples/write_topic_copy.py /backup/broken-store orders /tmp/rescued-store
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark_mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, source: str, topic: str, target: str) -> int:
    """Copies `topic` from `source` to `target`; how many messages came over. Keys, tags and properties stay."""
    rescued = (
        spark.read.format("mqstore")
        .option("scan", "log")
        .option("mode", "DROPMALFORMED")
        .option("topic", topic)
        .load(source)
        .where("length(body) > 0")
    )
    rescued.write.format("mqstore").mode("append").save(target)
    return spark.read.format("mqstore").load(target).count()


if __name__ == "__main__":
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, *sys.argv[1:4])} messages in {sys.argv[3]}")
