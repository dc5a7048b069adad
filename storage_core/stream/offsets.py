"""The offset of a stream as a checkpoint keeps it: JSON with the position in each queue, and what tells the store.

Spark compares offsets as texts, so equal offsets are written alike: topics and queues in order. Source of the rules:
interface.md 27a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import CheckpointError, DataLossError, listing
from storage_core.store import QueueKey
from storage_core.stream.tail import StreamSnapshot

VERSION = 1
DELETE = "start the query with a new checkpoint location"


@dataclass(frozen=True)
class Seal:
    """What the last message before `position` of a queue is, as the engine tells it."""

    key: QueueKey
    position: int
    text: str


@dataclass(frozen=True)
class StreamOffset:
    """Where a stream stands in each queue. `topics` is set where the start fixed them (`group:NAME`)."""

    engine: str
    positions: Mapping[QueueKey, int]
    seal: Seal | None = None
    topics: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object, its keys in canonical order."""
        queues: dict[str, dict[str, int]] = {}
        for (topic, queue_id), position in sorted(self.positions.items()):
            queues.setdefault(topic, {})[str(queue_id)] = position
        found: dict[str, Any] = {"mqstore": VERSION, "engine": self.engine, "queues": queues}
        if self.seal is not None:
            found["seal"] = [*self.seal.key, self.seal.position, self.seal.text]
        if self.topics is not None:
            found["topics"] = sorted(self.topics)
        return found

    def moved(self, positions: Mapping[QueueKey, int], snapshot: StreamSnapshot) -> StreamOffset:
        """The offset at other positions, sealed anew by the queue that went furthest."""
        if positions == self.positions:
            return self
        steps = {key: position - self.positions.get(key, 0) for key, position in positions.items()}
        for key in sorted(steps, key=lambda key: (-steps[key], key))[:8]:
            text = snapshot.seal(key, positions[key]) if positions[key] else None
            if text is not None:
                return replace(self, positions=positions, seal=Seal(key, positions[key], text))
        return replace(self, positions=positions)


def from_json(noted: Any, engine: str, path: str) -> StreamOffset:
    """The offset that `to_json` wrote for a store of `engine` at `path`. CheckpointError for any other JSON."""
    if not isinstance(noted, dict) or "mqstore" not in noted:
        raise CheckpointError(f"{path}: the checkpoint holds no offset of mqstore; {DELETE}")
    if noted["mqstore"] != VERSION:
        raise CheckpointError(
            f"{path}: the checkpoint holds offsets of version {noted['mqstore']}, this mqstore knows version "
            f"{VERSION}; run the version that wrote it, or {DELETE}"
        )
    try:
        positions = {
            (topic, int(queue_id)): _whole(position)
            for topic, queues in noted["queues"].items()
            for queue_id, position in queues.items()
        }
        seal = None
        if "seal" in noted:
            topic, queue_id, position, text = noted["seal"]
            seal = Seal((topic, _whole(queue_id)), _whole(position), str(text))
        topics = tuple(noted["topics"]) if "topics" in noted else None
        found = StreamOffset(noted["engine"], positions, seal, topics)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: the offset in the checkpoint is damaged; {DELETE}") from None
    if found.engine != engine:
        raise CheckpointError(
            f"{path}: the checkpoint belongs to a {found.engine} store, and this is a {engine} store; read the store "
            f"that it belongs to, or {DELETE}"
        )
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def check_store(offset: StreamOffset, snapshot: StreamSnapshot, path: str) -> None:
    """CheckpointError when the message that seals the offset is there, and is another one."""
    seal = offset.seal
    if seal is None or seal.position > snapshot.positions.get(seal.key, (0, 0))[1]:
        return
    found = snapshot.seal(seal.key, seal.position)
    if found is not None and found != seal.text:
        topic, queue_id = seal.key
        raise CheckpointError(
            f"{path}: the checkpoint belongs to another store: message {seal.position - 1} of {topic}/{queue_id} is "
            f"not the one that was read; read the store that it belongs to, or {DELETE}"
        )


def resumed(positions: Mapping[QueueKey, int], snapshot: StreamSnapshot, path: str, fail: bool) -> dict[QueueKey, int]:
    """The positions from which a store can still be read.

    A queue that is gone is left out, an expired position becomes the first readable one, and one after the end becomes
    the end; DataLossError instead of each of these when `fail` is set.
    """
    found: dict[QueueKey, int] = {}
    lost = []
    for key, position in positions.items():
        name = f"{key[0]}/{key[1]}"
        held = snapshot.positions.get(key)
        if held is None:
            if position:
                lost.append(f"{name} is gone, the checkpoint is at {position}")
            continue
        start, stop = held
        if position < start:
            lost.append(f"{name} begins at {start} now, the checkpoint is at {position}")
        elif position > stop:
            lost.append(f"{name} ends at {stop} now, the checkpoint is at {position}")
        found[key] = min(max(position, start), stop)
    if lost and fail:
        raise DataLossError(
            f"{path}: {listing(lost, 3)}; messages may be lost: set failOnDataLoss=false to go on with what is there"
        )
    return found
