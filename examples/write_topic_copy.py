"""Copies one topic from a broken store to a new one: every intact record, wherever it is in the log.

python examples/write_topic_copy.py /backup/broken-store orders /tmp/rescued-store

It prints how many messages were copied and what happened to the others. Bytes 0x01 and 0x02 separate properties on the
disk, so no property that is written may contain them; in rescued ones they become "?". Messages with an empty body are
left out, as no producer can send them. Records that are themselves damaged are listed by `mode=PERMISSIVE`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MENDED = (
    "transform_keys(transform_values(properties, (name, value) -> translate(value, '\u0001\u0002', '??')), "
    "(name, value) -> translate(name, '\u0001\u0002', '??'))"
)
COUNTS = {
    "rows": "count(*)",
    "with 0x01 or 0x02 in a property, written as ?": f"count_if(length(body) > 0 and to_json(properties) != "
    f"to_json({MENDED}))",
    "with an empty body, left out": "count_if(length(body) = 0)",
}


def run(spark: SparkSession, source: str, topic: str, target: str) -> dict[str, int]:
    """Copies `topic` from `source` to `target`; returns how many messages were copied, and counts of the others."""
    log = spark.read.format("mqstore").option("scan", "log").option("topic", topic)
    right = log.option("mode", "DROPMALFORMED").load(source)
    counted: Any = right.selectExpr(*(f"{how} as `{what}`" for what, how in COUNTS.items())).collect()[0]
    rescued = right.where("length(body) > 0").selectExpr("* except (properties)", f"{MENDED} as properties")
    rescued.write.format("mqstore").mode("append").save(target)
    return {"rescued": spark.read.format("mqstore").load(target).count(), **counted.asDict()}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    done = run(session, *sys.argv[1:4])
    print(f"{done.pop('rescued'):,} of {done.pop('rows'):,} messages in {sys.argv[3]}; of those that were read:")
    for what, count in done.items():
        print(f"{count:>12,}  {what}")
