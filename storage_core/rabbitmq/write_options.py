"""The options of a write to a RabbitMQ store, parsed. Leaves to `bulk_writer` what they do. Source: DESIGN 7.5."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError, closest
from storage_core.formats.rabbitmq import paths

DEFAULT_LOCK_TIMEOUT_S = 60.0
_NAMES = {name.lower(): name for name in ("queue", "topic", "exchange", "queueArguments", "lockTimeout")}


@dataclass(frozen=True)
class WriteOptions:
    """`queue` and `exchange` are for all rows, `arguments` those of `queue`; `priorities` maps names of queues to
    their `x-max-priority`.
    """

    queue: str | None = None
    exchange: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    priorities: Mapping[bytes, int] = field(default_factory=dict)
    lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S

    @classmethod
    def parsed(cls, options: Mapping[str, Any], priorities: Mapping[bytes, int]) -> WriteOptions:
        """Options by name, in any case, as values or text; `priorities` are those of queues that exist. OptionError."""
        given: dict[str, Any] = {}
        for name, value in options.items():
            canonical = _NAMES.get(name.lower())
            if canonical is None:
                near = closest(name, list(_NAMES.values())) or sorted(_NAMES.values())
                raise OptionError(name, str(value), f"a write has no such option; close ones are {', '.join(near)}")
            if value is not None:
                given[canonical] = value
        queue = given.get("queue", given.get("topic"))
        arguments = _arguments(given.get("queueArguments"))
        known = dict(priorities)
        if arguments and queue is None:
            raise OptionError("queueArguments", json.dumps(arguments), "belong to the option queue; give it too")
        if "x-max-priority" in arguments:
            known[str(queue).encode()] = _priority(arguments["x-max-priority"])
        timeout = _seconds(given.get("lockTimeout", DEFAULT_LOCK_TIMEOUT_S))
        return cls(queue, given.get("exchange"), arguments, known, timeout)


def _arguments(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        found = json.loads(value) if isinstance(value, str) else dict(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError("queueArguments", str(value), 'one JSON object is wanted, such as {"x-max-priority": 5}')
    return found


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= paths.MAX_PRIORITY:
        raise OptionError("queueArguments", str(value), f"x-max-priority is a number from 0 to {paths.MAX_PRIORITY}")
    return value


def _seconds(value: Any) -> float:
    text = str(value).strip().lower()
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        return float(text.removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        raise OptionError("lockTimeout", str(value), "a duration such as 60s, 500ms or 2m is wanted") from None
