"""Messages that consumers gave up on: dead letters with their original topic, and how often they were tried.

python examples/dead_letters.py /backup/broker-a/store
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mqstore import ensure_java, read


def dead_letters(spark: SparkSession, path: str) -> DataFrame:
    """Every message of the dead letter topics; 5.x writes DLQ_ORIGIN_TOPIC, both releases write RETRY_TOPIC."""
    messages = read(spark, path, filters=[("topic", "starts with", "%DLQ%")])
    properties = messages["properties"]
    return messages.select(
        f.expr("substring(topic, 6)").alias("group"),
        f.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties["RETRY_TOPIC"]).alias("from"),
        properties["ORIGIN_MESSAGE_ID"].alias("originMsgId"),
        "key",
        "tags",
        "reconsumeTimes",
        "bornTimestamp",
        messages["body"].cast("string").alias("body"),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    session = SparkSession.builder.getOrCreate()
    dead_letters(session, sys.argv[1]).show(100, truncate=50)
