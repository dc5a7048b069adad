"""Copies one topic out of a broken store into a new one: every record that is right, wherever in the log it lies.

python examples/write_topic_copy.py /backup/broken-store orders /tmp/rescued-store

Bytes 0x01 and 0x02 separate properties on the disk, so no property that is written may contain them; in rescued ones
they become "?". Messages with an empty body are left out, as no producer can send them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.functions import expr

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROPERTIES = (
    "transform_keys(transform_values(properties, (name, value) -> translate(value, '\u0001\u0002', '??')), "
    "(name, value) -> translate(name, '\u0001\u0002', '??'))"
)


def run(spark: SparkSession, source: str, topic: str, target: str) -> int:
    """Copies `topic` from `source` to `target`; how many messages came over. Keys, tags and properties stay."""
    rescued = (
        spark.read.format("mqstore")
        .option("scan", "log")
        .option("mode", "DROPMALFORMED")
        .option("topic", topic)
        .load(source)
        .where("length(body) > 0")
        .withColumn("properties", expr(PROPERTIES))
    )
    rescued.write.format("mqstore").mode("append").save(target)
    return spark.read.format("mqstore").load(target).count()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, *sys.argv[1:4])} messages in {sys.argv[3]}")
