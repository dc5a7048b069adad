"""The first steps of a user, on whichever Spark runs this: `python spark_version.py STORE TARGET MASTER`.

MASTER is the master of a classic session, or `connect` for a Spark Connect session on this machine. The last line
printed is JSON: for each step the number of rows that it saw, or the text of its error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import mqstore

STORE, TARGET, MASTER = sys.argv[1:4]


def session() -> Any:
    from pyspark.sql import SparkSession

    if MASTER == "connect":
        return SparkSession.builder.remote("local[2]").getOrCreate()
    quiet = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"}
    builder = SparkSession.builder.master(MASTER)
    for name, value in quiet.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    spark = session()

    def load(path: str = STORE, **options: str) -> Any:
        return spark.read.format("mqstore").options(**options).load(path)

    def sql() -> int:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW m USING mqstore OPTIONS (path '{STORE}', columns 'topic')")
        return int(spark.sql("SELECT count(*) FROM m").first()[0])

    def write(frame: Any, name: str, **options: str) -> int:
        frame.write.format("mqstore").mode("append").options(**options).save(TARGET + name)
        return int(load(TARGET + name).count())

    def stream(sink: str) -> int:
        source = spark.readStream.format("mqstore").options(topic="orders", maxOffsetsPerTrigger="4000").load(STORE)
        writer = source.select("topic", "body").writeStream.format(sink)
        writer = writer.option("checkpointLocation", f"{TARGET}checkpoint-{sink}").option("path", TARGET + f"to-{sink}")
        writer.trigger(availableNow=True).start().awaitTermination()
        return int(spark.read.format(sink).load(TARGET + f"to-{sink}").count())

    mails = "'mails' as topic", "key", "tags", "body"
    own = spark.createDataFrame([("order-1", b"one"), ("order-2", b"two")], "messageId string, body binary")
    steps: dict[str, Callable[[], int]] = {
        "read": lambda: load().count(),
        "read.limit": lambda: len(load(topic="orders").limit(2).collect()),
        "read.schema": lambda: spark.read.format("mqstore").schema("topic string, body string").load(STORE).count(),
        "read.key": lambda: load(key="order-000368").count(),
        "read.kafka": lambda: load(layout="kafka", topic="orders", includeHeaders="true").count(),
        "read.view": lambda: load(view="offsets").count(),
        "read.sql": sql,
        "write": lambda: write(load(topic="payments").selectExpr(*mails), "rocketmq"),
        "write.shards": lambda: write(load(topic="payments").selectExpr(*mails), "shards", publish="shards"),
        "write.rabbitmq": lambda: write(own, "rabbitmq", engine="rabbitmq", queue="orders"),
        "mqstore.read": lambda: mqstore.read(spark, STORE, columns=["topic", "body"]).count(),
        "mqstore.read.key": lambda: mqstore.read(spark, STORE, [("keys", "contains", "order-000368")]).count(),
        "mqstore.read.kafka": lambda: mqstore.read(spark, STORE, layout="kafka", topic="orders").count(),
        "mqstore.read.view": lambda: mqstore.read(spark, STORE, view="offsets").count(),
        "stream.read": lambda: stream("parquet"),
        "stream.write": lambda: stream("mqstore"),
        "error": lambda: load(topics="orders").count(),
    }
    found: dict[str, Any] = {"version": spark.version}
    for name, step in steps.items():
        try:
            found[name] = step()
        except Exception as error:  # noqa: BLE001 - the script is to find out what a Spark cannot do
            found[name] = " ".join(str(error).split())[:6000]
    spark.stop()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    mqstore.ensure_java()
    main()
