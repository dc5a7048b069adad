"""The lag of each consumer group, and the messages that it would read next.

python examples/consumer_lag.py /backup/broker-a/store
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mqstore import ensure_java


def lag(spark: SparkSession, path: str) -> DataFrame:
    """Messages that each group has not consumed yet, by topic."""
    offsets = spark.read.format("mqstore").option("view", "offsets").load(path)
    return offsets.groupBy("group", "topic").agg(f.sum("lag").alias("lag")).orderBy(f.desc("lag"))


def unread(spark: SparkSession, path: str, group: str, topic: str) -> DataFrame:
    """The messages that a group has not consumed yet."""
    return spark.read.format("mqstore").options(topic=topic, startingOffsets=f"group:{group}").load(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    session = SparkSession.builder.getOrCreate()
    lag(session, sys.argv[1]).show(100, truncate=False)
