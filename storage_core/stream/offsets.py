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
class Seal:
    """Identifies the last message before `position` of a queue, with a text from the engine."""

    key: QueueKey
    position: int
    text: str


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream in each queue. `topics` is set if the start fixed them (`group:NAME`), `seals` if each
    queue has a seal of its own. `first`: where the batch before began to read a queue that was new in it, if not at 0.
    """

    engine: str
    positions: Mapping[QueueKey, int]
    seal: Seal | None = None
    topics: tuple[str, ...] | None = None
    seals: Mapping[QueueKey, str] = field(default_factory=dict)
    first: Mapping[QueueKey, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, its keys in canonical order."""
        found: dict[str, Any] = {"mqstore": VERSION, "engine": self.engine, "queues": _nested(self.positions)}
        if self.seal is not None:
            found["seal"] = [*self.seal.key, self.seal.position, self.seal.text]
        if self.seals:
            found["seals"] = _nested(self.seals)
        if self.topics is not None:
            found["topics"] = sorted(self.topics)
        if self.first:
            found["first"] = _nested(self.first)
        return found

    def moved(
        self, positions: Mapping[QueueKey, int], snapshot: StreamSnapshot, starts: Mapping[QueueKey, int] | None = None
    ) -> StreamOffset:
        """The offset at other positions, with a new seal from the queue that advanced furthest. `starts`: where the
        batch that ends there begins.
        """
        if positions == self.positions:
            return self
        new = {key: start for key, start in (starts or {}).items() if start and key not in self.positions}
        moved = {key: position for key, position in positions.items() if position != self.positions.get(key)}
        kept = {key: text for key, text in self.seals.items() if key in positions}
        return replace(self._resealed(positions, snapshot), seals={**kept, **snapshot.seals(moved)}, first=new)

    def _resealed(self, positions: Mapping[QueueKey, int], snapshot: StreamSnapshot) -> StreamOffset:
        steps = {key: position - self.positions.get(key, 0) for key, position in positions.items()}
        for key in sorted(steps, key=lambda key: (-steps[key], key))[:8]:
            text = snapshot.seal(key, positions[key]) if positions[key] else None
            if text is not None:
                return replace(self, positions=positions, seal=Seal(key, positions[key], text))
        return replace(self, positions=positions)


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
        seal = None
        if "seal" in noted:
            topic, queue_id, position, text = noted["seal"]
            seal = Seal((topic, _whole(queue_id)), _whole(position), str(text))
        topics = tuple(noted["topics"]) if "topics" in noted else None
        found = StreamOffset(noted["engine"], positions, seal, topics, seals, first)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: the offset in the checkpoint is damaged; {DELETE}") from None
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


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def check_store(offset: StreamOffset, snapshot: StreamSnapshot, path: str) -> None:
    """Raises CheckpointError when a message that seals the offset is present, but is a different one. If each queue has
    a seal, none of them holds: else a queue was declared again, see `resumed`.
    """
    holds = {key: snapshot.holds(key, text) for key, text in offset.seals.items() if key in snapshot.positions}
    if False in holds.values() and True not in holds.values():
        key = next(key for key, held in holds.items() if held is False)
        raise _of_another_store(path, key, offset.seals[key].partition(":")[0])
    seal = offset.seal
    if seal is None or seal.position > snapshot.positions.get(seal.key, (0, 0))[1]:
        return
    found = snapshot.seal(seal.key, seal.position)
    if found is not None and found != seal.text:
        raise _of_another_store(path, seal.key, str(seal.position - 1))


def _of_another_store(path: str, key: QueueKey, number: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: the checkpoint belongs to another store: message {number} of {key[0]}/{key[1]} is not the one that "
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
