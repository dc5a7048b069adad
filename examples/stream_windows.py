"""A store as an embedded durable log: one query writes readings as they arrive, another sums them up in windows.

python examples/stream_windows.py /tmp/readings
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, folder: str, count: int = 100) -> dict[str, int]:
    """Writes at least `count` readings of Spark's rate source into a store, then counts them in windows of a second;
    returns the number of readings and of those in windows.
    """
    from pyspark.sql import functions

    rate = spark.readStream.format("rate").option("rowsPerSecond", count).load()
    readings = rate.selectExpr(
        "'readings' as topic",
        "concat('sensor-', value % 4) as key",
        "to_json(struct(value, timestamp)) as body",
    )
    writing = (
        readings.writeStream.format("mqstore")
        .option("checkpointLocation", f"{folder}/written")
        .start(f"{folder}/store")
    )
    while sum(progress["numInputRows"] for progress in writing.recentProgress) < count:
        writing.awaitTermination(1)
    writing.stop()
    read = spark.readStream.format("mqstore").option("topic", "readings").load(f"{folder}/store")
    values = read.selectExpr("key", "from_json(cast(body as string), 'value long, timestamp timestamp') as reading")
    windows = values.groupBy(functions.window("reading.timestamp", "1 second"), "key").count()
    (
        windows.writeStream.format("memory").queryName("windows").outputMode("complete")
        .option("checkpointLocation", f"{folder}/summed")
        .trigger(availableNow=True).start().awaitTermination()
    )  # fmt: skip
    summed = spark.table("windows").selectExpr("sum(count)").first()
    batch = spark.read.format("mqstore").option("topic", "readings").load(f"{folder}/store")
    return {"readings": batch.count(), "in windows": int(summed[0]) if summed else 0}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    for name, number in run(session, sys.argv[1]).items():
        print(f"{number} {name}")
