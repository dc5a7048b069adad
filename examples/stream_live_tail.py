"""Prints new messages from a live broker's directory as they arrive. The broker does not notice.

python examples/stream_live_tail.py /var/lib/rocketmq/store orders
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, path: str, topic: str, seconds: float | None = None, start: str = "latest") -> list[Any]:
    """Prints each message of a topic from `start` on, forever or for `seconds`; returns the texts of their bodies."""
    shown: list[Any] = []

    def show(batch: DataFrame, number: int) -> None:
        for row in batch.collect():
            print(f"{row.queueId}/{row.queueOffset} {row.key or ''} {row.text}")
            shown.append(row.text)

    messages = spark.readStream.format("mqstore").option("topic", topic).option("startingOffsets", start).load(path)
    wanted = messages.selectExpr("queueId", "queueOffset", "key", "cast(body as string) as text")
    query = wanted.writeStream.foreachBatch(show).trigger(processingTime="1 second").start()
    query.awaitTermination(seconds)
    query.stop()
    return shown


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    run(session, sys.argv[1], sys.argv[2])
