"""The switch of each option of a read: `mqstore` accepts what Spark accepts, under shorter names.

The option table defines what an option accepts; this module only defines how it is spelled in a shell. Imports nothing,
so that errors and help can use it.
"""

from __future__ import annotations

SWITCHES: dict[str, str] = {
    "engine": "--engine",
    "vhost": "--vhost",
    "queueType": "--queue-type",
    "commit": "--commit",
    "asOf": "--as-of",
    "recovery": "--recovery",
    "commitLogPath": "--commit-log-path",
    "storage": "--storage",
    "topic": "--topic",
    "topicPattern": "--topic-pattern",
    "assign": "--assign",
    "startingOffsets": "--start",
    "endingOffsets": "--stop",
    "startingTimestamp": "--from",
    "endingTimestamp": "--to",
    "key": "--key",
    "msgId": "--msg-id",
    "tag": "--tag",
    "scan": "--scan",
    "mode": "--mode",
    "failOnDataLoss": "--fail-on-data-loss",
    "verifyCrc": "--verify-crc",
    "decompress": "--decompress",
    "useIndex": "--use-index",
    "includeAcked": "--include-acked",
    "columns": "--columns",
}
"""Option of a read → its switch, in the order of the help."""

ALIASES: dict[str, str] = {
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
    "queuePattern": "topicPattern",
}
"""Other names of options in messages → the option."""

STORE_OPTIONS = ("engine", "vhost", "queueType", "commit", "asOf", "recovery", "commitLogPath", "storage")
"""The options that determine which stores are opened, and how."""

MESSAGE_OPTIONS = tuple(name for name in SWITCHES if name not in STORE_OPTIONS)
"""The options that determine which of their messages are read."""

QUEUE = "--queue"
"""Names of RabbitMQ queues, as in Spark's option `queue`; or numbers of the queues of a RocketMQ topic."""

SET = "--set"
"""How an option without a switch of its own is given: `--set name=value`."""


def switch_of(option: str) -> str:
    """The switch of an option, by any of its names."""
    if option == "queue":
        return QUEUE
    return SWITCHES.get(ALIASES.get(option, option), f"{SET} {option}")


def parameter_of(option: str) -> str:
    """The name of the parameter that passes a switch to a command's function."""
    return {"startingTimestamp": "start_time", "endingTimestamp": "stop_time"}.get(
        option, SWITCHES[option].lstrip("-").replace("-", "_")
    )
