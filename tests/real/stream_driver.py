"""A separate Spark driver that copies a store with a stream: `python -m tests.real.stream_driver FROM TO CHECKPOINT N`.

It reports when its session is ready, starts when it reads a line from stdin, reads N messages per micro-batch until it
has everything that the store then held, and prints the time of each batch in milliseconds.
"""

from __future__ import annotations

import json
import sys

from tests.real.spark_writer import OPTIONS
from tests.support.spark_session import session


def main(source: str, target: str, checkpoint: str, limit: str) -> None:
    """Runs until everything is copied, or until it is killed."""
    spark = session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    frame = spark.readStream.format("mqstore").option("maxOffsetsPerTrigger", limit).load(source)
    writer = frame.selectExpr("'copy' as topic", "key", "body").writeStream.format("mqstore").options(**OPTIONS)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)
    query.awaitTermination()
    print(json.dumps([progress["durationMs"]["addBatch"] for progress in query.recentProgress]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
