"""Merges two stores into a third: one DataFrame of both, written in the order of their store times.

python examples/write_merged.py /backup/broker-a/store /backup/broker-b/store /tmp/merged-store
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, first: str, second: str, target: str) -> int:
    """Writes the messages of two stores to `target`; returns how many it holds. Queue ids are kept, offsets are new."""
    both = spark.read.format("mqstore").load(first).unionByName(spark.read.format("mqstore").load(second))
    kept = both.where("topic != 'SCHEDULE_TOPIC_XXXX' and length(body) > 0").orderBy("storeTimestamp")
    kept.write.format("mqstore").mode("append").save(target)
    return spark.read.format("mqstore").load(target).count()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, *sys.argv[1:4])} messages in {sys.argv[3]}")
