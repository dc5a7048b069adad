"""Writes a DataFrame with Kafka's columns to a store unchanged: only format and path of a Kafka job change.

python examples/write_kafka_frame.py /tmp/events-store
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, path: str, count: int = 1_000) -> int:
    """Writes `count` events with columns key, value, topic, partition, headers; returns how many are read back."""
    events = spark.range(count).selectExpr(
        "cast(concat('user-', id % 50) as binary) as key",
        "cast(concat('event ', id) as binary) as value",
        "'events' as topic",
        "cast(id % 4 as int) as partition",
        "array(named_struct('key', 'source', 'value', cast('web' as binary))) as headers",
    )
    events.write.format("mqstore").mode("append").save(path)
    return spark.read.format("mqstore").option("layout", "kafka").option("subscribe", "events").load(path).count()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, sys.argv[1])} events in {sys.argv[1]}")
