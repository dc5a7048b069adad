"""The parameters that commands share: STORE, and the switches that choose stores and messages.

The values of switches are parsed as options of a read (`selection`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from command_line.switches import QUEUE, SWITCHES, parameter_of
from storage_core.errors import OptionError

Function = Callable[..., Any]


class IntegerRange(click.IntRange):
    """A whole number in a range; click itself calls it an "integer range"."""

    name = "integer"


class NumberRange(click.FloatRange):
    """A number in a range; click itself calls it a "float range", and takes `nan` and `inf`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


PIPE, PARQUET = "-", "parquet"


def file_kind(file: str, given: str | None, kinds: Mapping[str, str], use: str) -> str:
    """What FILE contains: the value of --format, else what its suffix means in `kinds`; in a pipe, JSON lines.

    `use` is what an error says that Parquet in a pipe cannot be. Raises OptionError.
    """
    kind = given or kinds.get(".jsonl" if file == PIPE else os.path.splitext(file)[1].lower())
    if kind is None:
        raise OptionError("FILE", file, f"its name must end in {', '.join(kinds)}, or add --format")
    if kind == PARQUET and file == PIPE:
        raise OptionError("--format", kind, f"needs a file: Parquet cannot be {use} a pipe")
    return kind


BODIES = ("text", "json", "hex", "base64")

_HELP = {
    "engine": ("auto|rocketmq|rabbitmq", "Only stores of this engine."),
    "vhost": ("NAME,…", "RabbitMQ: only these virtual hosts."),
    "queueType": ("TYPE", "RabbitMQ: only queues of this type: classic, quorum or stream."),
    "commit": ("WHAT", "Quorum queues: end (the whole log) or applied (only entries that are certainly committed)."),
    "asOf": ("MS", "Quorum queues: leave out messages that had expired by then (ms since 1970)."),
    "recovery": ("auto|4.9|5.x|none", "Whose recovery rules apply to a crashed store."),
    "commitLogPath": ("DIR,…", "RocketMQ: a commit log outside of STORE (storePathCommitLog)."),
    "storage": ("NAME=VALUE", "Access to a URI: endpoint=https://…, region=…; prefer the environment for keys."),
    "topic": ("NAME,…", "Topics, or RabbitMQ queues."),
    "topicPattern": ("REGEX", "Topics, or RabbitMQ queues, that match as a whole."),
    "assign": ("JSON", 'Exact queues: {"orders": [0, 1]}.'),
    "startingOffsets": ("OFFSET", "Where each queue starts: 100, -10 (the last ten), group:NAME, or JSON."),
    "endingOffsets": ("OFFSET", "Where each queue ends, exclusive."),
    "startingTimestamp": ("TIME", "Stored at or after: 2026-11-20T08:00, epoch ms, or -10m, -2h, -1d."),
    "endingTimestamp": ("TIME", "Stored before."),
    "key": ("KEY", "RocketMQ: with this word in KEYS; several as a JSON list."),
    "msgId": ("ID", "RocketMQ: with this message id; several as a JSON list."),
    "tag": ("TAG", "RocketMQ: 'A', or 'A || B'."),
    "scan": ("queues|log", "log: every intact record of the log, queues lost or not."),
    "mode": ("MODE", "Damaged messages: failfast, dropmalformed or permissive."),
    "failOnDataLoss": ("true|false", "Whether offsets that no longer exist are an error."),
    "verifyCrc": ("true|false", "Whether checksums of bodies are checked."),
    "decompress": ("true|false", "RocketMQ: false leaves compressed bodies as stored."),
    "useIndex": ("true|false", "RocketMQ: false looks keys up without the index files."),
    "includeAcked": ("", "RabbitMQ: acknowledged messages that are still on disk, too."),
    "columns": ("NAME,…", "Only these columns."),
}
"""Option → the placeholder for its value in the help, and the help text."""


def store_argument(function: Function) -> Function:
    """Adds the argument STORE: a store's directory, or a folder of stores."""
    return click.argument("store", type=click.Path())(function)


def json_option(function: Function) -> Function:
    """Adds the switch --json."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line, with exact values.")(
        function
    )


def body_option(function: Function) -> Function:
    """Adds the switch --body."""
    shown = click.Choice(BODIES, case_sensitive=False)
    text = "How bodies are shown; json embeds a body that is JSON."
    return click.option("--body", type=shown, default="text", show_default=True, help=text)(function)


def format_option(function: Function) -> Function:
    """Adds the switch --format."""
    text = "json (one object per line), csv, or a template: '{storeTimestamp} {key} {body.price}'."
    return click.option("--format", "format_", metavar="FORMAT", default="json", show_default=True, help=text)(function)


def count_option(function: Function) -> Function:
    """Adds the switch -n."""
    return click.option("-n", "--limit", type=IntegerRange(0), metavar="N", help="At most N messages.")(function)


def switches(*options: str) -> Callable[[Function], Function]:
    """Adds the switches of these options of a read, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            metavar, text = _HELP[option]
            names = (SWITCHES[option], parameter_of(option))
            if option == "includeAcked":
                function = click.option(*names, is_flag=True, help=text)(function)
            else:
                several = option in ("topic", "vhost", "storage")
                function = click.option(*names, metavar=metavar, multiple=several, help=text)(function)
        return function

    return decorate


def queue_option(function: Function) -> Function:
    """Adds the switch --queue."""
    text = "RocketMQ: numbers of queues of --topic. RabbitMQ: names of queues."
    return click.option(QUEUE, metavar="QUEUE,…", multiple=True, help=text)(function)
