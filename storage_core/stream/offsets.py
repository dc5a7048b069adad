"""The offset of a stream as stored in a checkpoint: JSON with the position in each queue, and what identifies the
store.

Spark compares offsets as texts, so equal offsets are written identically: topics and queues in order. Source of the
rules: interface.md 27a.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_core.errors import CheckpointError, DataLossError, listing
from storage_core.store import QueueKey
from storage_core.stream.tail import StreamSnapshot

VERSION = 1
DELETE = "start the query with a new checkpoint location"


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream in each queue. `topics` is set if the start fixed them (`group:NAME`). `seals` identify
    the last message before each position. `first`: where the batch before began to read a queue that was new in it, if
    not at 0.
    """

    engine: str
    positions: Mapping[QueueKey, int]
    topics: tuple[str, ...] | None = None
    seals: Mapping[QueueKey, str] = field(default_factory=dict)
    first: Mapping[QueueKey, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, its keys in canonical order."""
        found: dict[str, Any] = {"mqstore": VERSION, "engine": self.engine, "queues": _nested(self.positions)}
        if self.seals:
            found["seals"] = _nested(self.seals)
        if self.topics is not None:
            found["topics"] = sorted(self.topics)
        if self.first:
            found["first"] = _nested(self.first)
        return found

    def place(self, key: QueueKey) -> tuple[int | None, str | None]:
        """The position in a queue and its seal: equal in two offsets if no message of the queue lies between them."""
        return self.positions.get(key), self.seals.get(key)

    def moved(
        self, positions: Mapping[QueueKey, int], snapshot: StreamSnapshot, starts: Mapping[QueueKey, int] | None = None
    ) -> StreamOffset:
        """The offset at other positions, with new seals. `starts`: where the batch that ends there begins, which is
        before a position of this offset if a queue was written again.
        """
        starts = starts or {}
        new = {key: start for key, start in starts.items() if start and key not in self.positions}
        moved = {
            key: position for key, position in positions.items()
            if not position == self.positions.get(key) == starts.get(key, position)
        }  # fmt: skip
        if not moved and positions == self.positions:
            return self
        kept = {key: text for key, text in self.seals.items() if positions.get(key, -1) >= self.positions.get(key, 0)}
        return replace(self, positions=positions, seals={**kept, **snapshot.seals(moved)}, first=new)


def from_json(noted: Any, engine: str, path: str) -> StreamOffset:
    """The offset that `to_json` wrote for a store of `engine` at `path`. Raises CheckpointError for any other JSON."""
    if not isinstance(noted, dict) or "mqstore" not in noted:
        raise CheckpointError(f"{path}: the checkpoint holds no offset of mqstore; {DELETE}")
    if noted["mqstore"] != VERSION:
        raise CheckpointError(
            f"{path}: the checkpoint holds offsets of version {noted['mqstore']}, this mqstore knows version "
            f"{VERSION}; run the version that wrote it, or {DELETE}"
        )
    try:
        positions = {key: _whole(position) for key, position in _flat(noted["queues"])}
        seals = {key: _seal_text(text) for key, text in _flat(noted.get("seals", {}))}
        first = {key: _whole(position) for key, position in _flat(noted.get("first", {}))}
        topics = _names(noted["topics"]) if "topics" in noted else None
        found = StreamOffset(noted["engine"], positions, topics, seals, first)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _damaged(path) from None
    if found.engine != engine:
        raise CheckpointError(
            f"{path}: the checkpoint belongs to a {found.engine} store, and this is a {engine} store; read the store "
            f"that it belongs to, or {DELETE}"
        )
    return found


def _nested(values: Mapping[QueueKey, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (topic, queue_id), value in sorted(values.items()):
        found.setdefault(topic, {})[str(queue_id)] = value
    return found


def _flat(nested: Any) -> Iterator[tuple[QueueKey, Any]]:
    return (((topic, int(each)), value) for topic, queues in nested.items() for each, value in queues.items())


def _seal_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    int(value.partition(":")[0])
    return value


def sealed_end(seal: str, separator: str, path: str) -> int:
    """The number after the last `separator` of a seal. Raises CheckpointError if there is none: somebody edited it."""
    try:
        return int(seal.rpartition(separator)[2])
    except ValueError:
        raise _damaged(path, f": {seal!r} seals no message") from None


def _damaged(path: str, reason: str = "") -> CheckpointError:
    return CheckpointError(f"{path}: the offset in the checkpoint is damaged{reason}; {DELETE}")


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(value)
    return tuple(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def check_store(offset: StreamOffset, snapshot: StreamSnapshot, path: str) -> None:
    """Raises CheckpointError when a message that seals a queue is present but a different one, and no other seal holds:
    else that queue alone was made or written again, see `resumed`. A store in which this happened to each queue that
    has a seal cannot be told from another one.
    """
    holds = {key: snapshot.holds(key, text) for key, text in offset.seals.items() if key in snapshot.positions}
    if False in holds.values() and True not in holds.values():
        key = next(key for key, held in holds.items() if held is False)
        raise CheckpointError(
            f"{path}: the checkpoint belongs to another store, or all queues that it can be told by were cut and "
            f"written again: message {offset.seals[key].partition(':')[0]} of {key[0]}/{key[1]} is not the one that "
            f"was read; read the store that it belongs to, or {DELETE}"
        )


def resumed(
    positions: Mapping[QueueKey, int], snapshot: StreamSnapshot, path: str, fail: bool,
    seals: Mapping[QueueKey, str] | None = None,
) -> dict[QueueKey, int]:  # fmt: skip
    """The positions from which a store can still be read.

    A missing queue is left out, an expired position becomes the first readable one, and one after the end becomes the
    end; if `fail` is set, each of these raises DataLossError instead.
    """
    found: dict[QueueKey, int] = {}
    lost = []
    for key, position in positions.items():
        name = f"{key[0]}/{key[1]}"
        if key not in snapshot.positions:
            if position:
                lost.append(f"{name} is gone, the checkpoint is at {position}")
            continue
        found[key], reason = snapshot.lost(key, position, (seals or {}).get(key))
        if reason:
            lost.append(f"{name} {reason}")
    if lost and fail:
        raise DataLossError(
            f"{path}: {listing(lost, 3)}; messages may be lost, if this is the store of the checkpoint: "
            "set failOnDataLoss=false to go on with what is there"
        )
    return found
