"""The options of a write to a RabbitMQ store, parsed. `job` applies them. Source: docs/rabbitmq.md "Writing"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError
from storage_core.formats.rabbitmq import paths
from storage_core.options import values
from storage_core.options.option import RABBITMQ, WRITE, Option, parsed


def _arguments(name: str, text: str) -> dict[str, Any]:
    return values.json_object(name, text, '{"x-max-priority": 5}')


WRITE_OPTIONS = (
    Option("queue", "name", None, "for all rows", WRITE, engine=RABBITMQ),
    Option("topic", "name", None, "another name of queue", WRITE),
    Option("exchange", "name", None, "of written RabbitMQ messages", WRITE, engine=RABBITMQ),
    Option("queueArguments", "JSON object", None, "of the queue that the option queue names", WRITE, _arguments,
           engine=RABBITMQ),
    Option("lockTimeout", "duration", "60s", "how long a write waits for another", WRITE, values.duration_s),
)  # fmt: skip
DEFAULT_LOCK_TIMEOUT_S = 60.0
VERSIONS = (1, 2)


@dataclass(frozen=True)
class WriteOptions:
    """`queue` and `exchange` apply to all rows, `arguments` to `queue`; `priorities` maps queue names to their
    `x-max-priority`, `versions` to their `x-queue-version`.
    """

    queue: str | None = None
    exchange: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    priorities: Mapping[bytes, int] = field(default_factory=dict)
    versions: Mapping[bytes, int] = field(default_factory=dict)
    lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S

    @classmethod
    def parsed(cls, options: Mapping[str, Any], priorities: Mapping[bytes, int]) -> WriteOptions:
        """Options by name (any case), as values or text; `priorities` are of existing queues. Raises OptionError."""
        given = parsed(options, WRITE_OPTIONS, "options of a write")
        queue = given["queue"] if given["queue"] is not None else given["topic"]
        arguments = given["queueArguments"] or {}
        known = dict(priorities)
        if arguments and queue is None:
            raise OptionError("queueArguments", json.dumps(arguments), "belong to the option queue; give it too")
        kind = arguments.get("x-queue-type", "classic")
        if kind != "classic":
            raise OptionError("queueArguments", json.dumps(arguments), f"no {kind} queue is written; a classic one is")
        versions = {}
        if "x-queue-version" in arguments:
            versions[str(queue).encode()] = _version(arguments["x-queue-version"])
        if "x-max-priority" in arguments:
            known[str(queue).encode()] = _priority(arguments["x-max-priority"])
        return cls(queue, given["exchange"], arguments, known, versions, given["lockTimeout"])


def _version(value: Any) -> int:
    if isinstance(value, bool) or value not in VERSIONS:
        raise OptionError("queueArguments", str(value), "x-queue-version is 1 or 2")
    return int(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= paths.MAX_PRIORITY:
        raise OptionError("queueArguments", str(value), f"x-max-priority is a number from 0 to {paths.MAX_PRIORITY}")
    return value
