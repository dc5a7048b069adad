"""Messages that a producer sent more than once: one unique key, several places.

python examples/find_duplicates.py /backup/broker-a/store
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mqstore import ensure_java, read


def duplicates(spark: SparkSession, path: str) -> DataFrame:
    """A row for each unique key that is at several places of one topic.

    A message that was delayed or sent back keeps its key on its way through other topics; that is not a duplicate.
    """
    messages = read(spark, path, columns=["topic", "queueId", "queueOffset", "msgId"])
    places = f.collect_list(f.struct("queueId", "queueOffset")).alias("places")
    return messages.groupBy("topic", "msgId").agg(f.count("*").alias("copies"), places).where("copies > 1")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    session = SparkSession.builder.getOrCreate()
    duplicates(session, sys.argv[1]).orderBy("copies", ascending=False).show(truncate=False)
