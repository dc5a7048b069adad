"""Moves queues of a RabbitMQ store into a RocketMQ store, and counts what RocketMQ has no place for.

python examples/rabbitmq_to_rocketmq.py /backup/rabbit@host/msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L /data/store

| RocketMQ | from RabbitMQ |
|---|---|
| topic | the queue's name; every character that a topic may not have becomes `_` |
| queue, queueOffset | queue 0 of the topic, in the order in which the node would deliver |
| body | body; an empty one is refused by RocketMQ and left out |
| key (KEYS) | messageId |
| tags (TAGS) | type |
| bornTimestamp | timestamp |
| property `header.<name>` | a header; text as it is, other types as JSON text, without its type |
| property `amqp.<column>` | the other properties, the exchange, and the routing keys as JSON: the list `KEPT` |
| – | redelivered, guid, expiresAt, headers of type void or with an empty value |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mqstore import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = [
    "exchange",
    "contentType",
    "contentEncoding",
    "correlationId",
    "replyTo",
    "userId",
    "appId",
    "priority",
    "expiration",
]
TOPIC = "regexp_replace(queue, '[^%|a-zA-Z0-9_-]', '_')"
FILLED = "map_filter(coalesce(headers, map()), (name, value) -> value != '' and value is not null)"
LOST = {
    "rows": "count(*)",
    "empty bodies, not written": "count_if(length(body) = 0)",
    "queues with another name as topic": f"count(distinct case when queue != {TOPIC} then queue end)",
    "expirations that nothing will enforce": "count_if(expiresAt is not null)",
    "priorities that no longer order": "count_if(priority > 0)",
    "redelivered flags": "count_if(redelivered)",
    "headers without a value": f"sum(size(coalesce(headers, map())) - size({FILLED}))",
}


def what_is_lost(messages: DataFrame) -> dict[str, int]:
    """How many messages (or queues, headers) suffer each loss. Raises ValueError if two queues would share a topic."""
    names = messages.selectExpr("queue", f"{TOPIC} as topic").distinct()
    clash = names.groupBy("topic").agg({"queue": "collect_list"}).where("size(`collect_list(queue)`) > 1").collect()
    if clash:
        raise ValueError(f"the queues {sorted(clash[0][1])} would share the topic {clash[0][0]}; move them one by one")
    counted: Any = messages.selectExpr(*(f"{how} as `{what}`" for what, how in LOST.items())).collect()[0]
    return {what: counted[what] or 0 for what in LOST}


def renamed(messages: DataFrame) -> dict[str, str]:
    """The queues whose names are not allowed for topics, and the topics that they become."""
    found = messages.selectExpr("queue", f"{TOPIC} as topic").where("queue != topic").distinct().orderBy("queue")
    return {row["queue"]: row["topic"] for row in found.collect()}


def run(spark: SparkSession, source: str, target: str, **options: str) -> dict[str, int]:
    """Moves the queues that `options` (queue, queuePattern, vhost) select; returns what was lost."""
    messages = spark.read.format("mqstore").options(**options).load(source)
    lost = what_is_lost(messages)
    pairs = ", ".join(f"'amqp.{name}', cast({name} as string)" for name in KEPT)
    rows = messages.where("length(body) > 0").selectExpr(
        f"{TOPIC} as topic",
        "0 as queueId",
        "body",
        "messageId as key",
        "type as tags",
        "timestamp as bornTimestamp",
        f"map_concat(map_filter(map({pairs}, 'amqp.routingKeys', to_json(routingKeys)), (name, value) -> value != ''), "
        f"transform_keys({FILLED}, (name, value) -> concat('header.', name))) as properties",
    )
    rows.write.format("mqstore").mode("append").option("engine", "rocketmq").option("queues", "1").save(target)
    return lost


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ensure_java()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    for queue, topic in renamed(session.read.format("mqstore").load(sys.argv[1])).items():
        print(f"queue {queue} becomes topic {topic}")
    lost = run(session, sys.argv[1], sys.argv[2])
    print(f"{lost.pop('rows'):,} messages read, {sys.argv[2]} written. What the target has no place for:")
    for what, count in lost.items():
        print(f"{count:>12,}  {what}")
