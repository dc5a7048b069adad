"""Where a read starts and ends: parses `startingOffsets`, `endingOffsets` and `assign` into bounds for each store.

The rules are those of Spark's Kafka source for batches; with several stores the JSON's outer key is the store's name.
The engine decides what a bound means in a queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.errors import OptionError, listing
from storage_core.options.values import json_object, whole
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueKey

_LAST = re.compile(r"last:\s*(\d{1,18})", re.IGNORECASE)
_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'
_ASSIGN_EXAMPLE = '{"orders": [0, 1]}'
_MAX_QUEUE_ID = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True)
class Bound:
    """A bound as the user wrote it; `by_name` is the JSON, not yet interpreted: its depth depends on the stores.

    `of_stream`: the latest offset is allowed as a start too.
    """

    option: str
    text: str
    plain: OffsetBound
    by_name: Mapping[str, Any] | None = None
    of_stream: bool = False

    @property
    def narrows(self) -> bool:
        """Whether the bound may leave messages out."""
        return self.by_name is not None or self.plain.last is not None or self.plain.group is not None

    def of_store(self, store: str, stores: Sequence[str]) -> OffsetBound:
        """The bound for one of `stores`; queues that the JSON does not name get the default."""
        if self.by_name is None:
            return self.plain
        inner = _of_store(self.option, self.text, self.by_name, store, stores, _EXAMPLE)
        offsets: dict[QueueKey, int] = {}
        for topic, queues in inner.items():
            if not isinstance(queues, dict) or not queues:
                raise _wrong_shape(self.option, self.text, topic, _EXAMPLE)
            for queue_id, offset in queues.items():
                key = topic, _queue_id(self.option, self.text, queue_id)
                if key in offsets:
                    raise OptionError(self.option, self.text, f"names the queue {key[0]}/{key[1]} twice")
                offsets[key] = self._offset(topic, queue_id, offset)
        return OffsetBound(self.plain.default, offsets)

    def _offset(self, topic: str, queue_id: str, offset: Any) -> int:
        if not isinstance(offset, int) or isinstance(offset, bool) or not EARLIEST <= offset <= _MAX_OFFSET:
            raise OptionError(
                self.option,
                self.text,
                f"offset {json.dumps(offset)} of {topic}/{queue_id} must be a whole number of at least 0, or -2, -1",
            )
        starting = self.plain.default == EARLIEST
        if self.of_stream:
            return offset
        if offset == (LATEST if starting else EARLIEST):
            word = "-1 (latest) as a start" if starting else "-2 (earliest) as an end"
            raise OptionError(
                self.option, self.text, f"{topic}/{queue_id} has {word}, which would read nothing; leave the queue out"
            )
        return offset


@dataclass(frozen=True)
class Assignment:
    """The option `assign` as the user wrote it."""

    text: str
    by_name: Mapping[str, Any]

    def of_store(self, store: str, stores: Sequence[str]) -> tuple[QueueKey, ...]:
        """The queues of one of `stores`, in the order given."""
        inner = _of_store("assign", self.text, self.by_name, store, stores, _ASSIGN_EXAMPLE)
        queues: dict[QueueKey, None] = {}
        for topic, queue_ids in inner.items():
            if not isinstance(queue_ids, list) or not queue_ids:
                raise _wrong_shape("assign", self.text, topic, _ASSIGN_EXAMPLE)
            for queue_id in queue_ids:
                queues[topic, _queue_id("assign", self.text, queue_id)] = None
        return tuple(queues)


def bound(starting: bool, of_stream: bool = False) -> Callable[[str, str], Bound]:
    """The parser of `startingOffsets` (or `endingOffsets`); for a stream it accepts `latest` as a start."""
    default = EARLIEST if starting else LATEST

    def parse(name: str, text: str) -> Bound:
        value = text.strip()
        word = value.lower()
        if word == ("earliest" if starting else "latest"):
            return Bound(name, text, OffsetBound(default))
        if of_stream and word == "latest":
            return Bound(name, text, OffsetBound(LATEST))
        if word in ("earliest", "latest"):
            other = "earliest, which is the default" if starting else "latest, which is the default"
            raise OptionError(name, text, f"would read nothing in a batch; leave it out for {other}")
        if match := _LAST.fullmatch(value):
            return Bound(name, text, OffsetBound(default, last=int(match[1])))
        if word.startswith("group:"):
            group = value[len("group:") :].strip()
            if not group:
                raise OptionError(name, text, "names no consumer group; write it like group:billing")
            # For a queue that the group never read, the earliest offset is used at both ends.
            return Bound(name, text, OffsetBound(EARLIEST, group=group))
        if value.startswith("{"):
            return Bound(name, text, OffsetBound(default), json_object(name, text, _EXAMPLE), of_stream)
        allowed = "earliest, latest" if of_stream else "earliest" if starting else "latest"
        raise OptionError(name, text, f"must be {allowed}, last:100, group:billing, or JSON such as {_EXAMPLE}")

    return parse


def assignment(name: str, text: str) -> Assignment:
    """The parser of `assign`."""
    found = json_object(name, text, _ASSIGN_EXAMPLE)
    if not found:
        raise OptionError(name, text, f"names no queue; write it like {_ASSIGN_EXAMPLE}")
    return Assignment(text, found)


def _of_store(
    option: str, text: str, by_name: Mapping[str, Any], store: str, stores: Sequence[str], example: str
) -> Mapping[str, Any]:
    if len(stores) == 1:
        return by_name
    unknown = [name for name in by_name if name not in stores]
    if unknown:
        shape = f'{{"{stores[0]}": {example}}}'
        raise OptionError(
            option, text, f"names {unknown[0]}, which is none of the stores {listing(stores)}; write it like {shape}"
        )
    inner = by_name.get(store, {})
    if not isinstance(inner, dict):
        raise _wrong_shape(option, text, store, f'{{"{store}": {example}}}')
    return inner


def _queue_id(option: str, text: str, value: Any) -> int:
    number = whole(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_QUEUE_ID:
        raise OptionError(option, text, f"queue {json.dumps(value)} must be a queue id, 0 to {_MAX_QUEUE_ID}")
    return number


def _wrong_shape(option: str, text: str, key: str, example: str) -> OptionError:
    return OptionError(option, text, f"what stands at {key} has the wrong shape; write it like {example}")
