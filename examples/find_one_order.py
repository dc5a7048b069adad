"""Traces one order: every message about it, in every topic, in the order in which the broker stored them.

python examples/find_one_order.py /backup/broker-a/store order-001178
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from mqstore import ensure_java


def trace(spark: SparkSession, path: str, key: str) -> DataFrame:
    """The messages with this key, located through the index files."""
    found = spark.read.format("mqstore").option("key", key).load(path)
    text = found["body"].cast("string").alias("body")
    return found.select("storeTimestamp", "topic", "tags", "queueId", "queueOffset", text).orderBy("storeTimestamp")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ensure_java()
    session = SparkSession.builder.getOrCreate()
    trace(session, *sys.argv[1:3]).show(100, truncate=60)
