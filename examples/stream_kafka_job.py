"""A streaming job written for Kafka, moved over: format and path change, options and columns stay.

python examples/stream_kafka_job.py /backup/broker-a/store orders /data/orders-by-key
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, path: str, topic: str, target: str) -> int:
    """Copies key, value, partition and offset of a topic to Parquet, up to the end of the store; returns how many rows
    there are now. When run again, it continues where it ended.
    """
    events = (
        spark.readStream.format("mqstore")  # .format("kafka")
        .option("kafka.bootstrap.servers", "broker:9092")  # ignored, with a warning
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10_000)
        .option("layout", "kafka")
        .load(path)  # .load()
    )
    query = (
        events.selectExpr("cast(key as string) as key", "cast(value as string) as value", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", f"{target}/rows")
        .option("checkpointLocation", f"{target}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{target}/rows").count()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, *sys.argv[1:])} rows in {sys.argv[3]}/rows")
