"""A DataFrame becomes a RocketMQ store that a stock broker boots from.

python examples/write_dataframe.py /tmp/orders-store
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, path: str, count: int = 10_000) -> int:
    """Writes `count` orders into the store at `path`, which may be new; returns how many messages it then holds."""
    orders = spark.range(count).selectExpr(
        "'orders' as topic",
        "concat('order-', id) as key",
        "if(id % 10 = 0, 'express', 'normal') as tags",
        "to_json(named_struct('order', id, 'amount', id % 97)) as body",
    )
    orders.write.format("mqstore").mode("append").option("queues", "8").save(path)
    return spark.read.format("mqstore").load(path).count()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    print(f"{run(session, sys.argv[1])} messages in {sys.argv[1]}")
