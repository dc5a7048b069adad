"""Converts the queues of a RabbitMQ store to Kafka's columns, as Parquet, and counts what these have no place for.

python examples/rabbitmq_to_kafka_layout.py /backup/rabbit@host /data/messages.parquet

| Kafka | from RabbitMQ |
|---|---|
| topic, partition | the queue's name, 0 |
| offset | the sequence id in its queue (of a priority queue it counts per priority, and may repeat) |
| key, value | the first routing key, the body |
| headers | the headers; text as it is, other types as JSON text, without their type |
| timestamp, timestampType | null and 0: a RabbitMQ store records no time |
| – | the other routing keys, the exchange, and every other AMQP property |

The same frame goes to a running Kafka with `.write.format("kafka").option("kafka.bootstrap.servers", …)`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES = [
    "contentType",
    "contentEncoding",
    "correlationId",
    "replyTo",
    "messageId",
    "type",
    "userId",
    "appId",
    "priority",
    "expiration",
]
LOST = {
    "rows": "count(*)",
    "further routing keys": "sum(greatest(size(routingKeys) - 1, 0))",
    "exchanges": "count_if(exchange != '')",
    **{name: f"count({name})" for name in (*PROPERTIES, "timestamp", "expiresAt")},
    "redelivered flags": "count_if(redelivered)",
    "offsets that repeat": "count(*) - count(distinct queue, sequenceId)",
}


def run(spark: SparkSession, source: str, target: str, **options: str) -> dict[str, int]:
    """Writes the queues that `options` (queue, queuePattern, vhost) select; returns a count for each kind of loss."""
    reader = spark.read.format("mqstore").options(**options)
    lost: Any = reader.load(source).selectExpr(*(f"{how} as `{what}`" for what, how in LOST.items())).collect()[0]
    kafka = spark.read.format("mqstore").options(**options).option("layout", "kafka").option("includeHeaders", "true")
    kafka.load(source).write.parquet(target)
    return {what: lost[what] or 0 for what in LOST}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    lost = run(session, sys.argv[1], sys.argv[2])
    print(f"{lost.pop('rows'):,} messages read, {sys.argv[2]} written. What the target has no place for:")
    for what, count in lost.items():
        print(f"{count:>12,}  {what}")
