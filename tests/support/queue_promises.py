"""Random work on a queue, and the promises made to its caller: messages that must not be lost or must not return."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.queue.queue import Queue
from storage_core.rabbitmq.store import VhostStore

SMALL = Settings(
    queue_index_segment_entry_count=8,
    queue_index_max_journal_entries=40,
    queue_index_embed_msgs_below=100,
    msg_store_io_batch_size=4,
    msg_store_file_size_limit=2500,
    queue_explicit_gc_run_operation_threshold=2,
)


@dataclass
class Promises:
    """Promises to the caller: bodies that must be present, and that must be absent; fetched ones are pending."""

    kept: set[bytes] = field(default_factory=set)
    removed: set[bytes] = field(default_factory=set)
    waiting: set[bytes] = field(default_factory=set)
    leaving: set[bytes] = field(default_factory=set)
    volatile: set[bytes] = field(default_factory=set)

    def synced(self) -> None:
        self.kept = (self.kept | self.waiting) - self.leaving
        self.removed |= self.leaving
        self.waiting, self.leaving = set(), set()


def work(queue: Queue, promises: Promises, seed: int) -> None:
    """Publishes, fetches, acknowledges, requeues and pages small and large messages, with occasional syncs."""
    chance = random.Random(seed)
    number = 0
    pending: dict[int, bytes] = {}
    queue.set_target_ram_count(6)
    for _ in range(26):
        kind = chance.choice(["small", "large", "large", "volatile", "ack", "ack", "requeue", "sync", "page"])
        if kind in ("small", "large", "volatile"):
            size = 300 if kind == "large" else 20
            bodies = [b"%06d" % (number + place) + b"." * size for place in range(chance.randint(1, 7))]
            number += len(bodies)
            (promises.volatile if kind == "volatile" else promises.waiting).update(bodies)
            queue.publish_many(bodies, persistent=kind != "volatile")
        elif kind == "ack":
            taken = queue.fetch_many(chance.randint(1, 8))
            pending |= dict(zip(taken.sequence_ids.tolist(), taken.bodies(), strict=True))
            tags = chance.sample(sorted(pending), min(len(pending), chance.randint(1, 9)))
            bodies = {pending.pop(tag) for tag in tags}
            promises.leaving |= bodies
            promises.kept -= bodies
            queue.ack(tags)
        elif kind == "requeue":
            tags = sorted(pending)[: chance.randint(0, 4)]
            queue.requeue(tags)
            for tag in tags:
                del pending[tag]
        elif kind == "page":
            queue.set_target_ram_count(chance.choice([0, 2, 6]))
        else:
            queue.sync()
            promises.synced()


def leave_gaps(queue: Queue, promises: Promises, seed: int) -> None:
    """Fills message files and acknowledges most messages of each, twice, so that neighbouring files are merged."""
    chance = random.Random(seed)
    for round_ in range(2):
        bodies = [b"%d-%06d" % (round_, number) + b"." * chance.randint(300, 500) for number in range(24)]
        promises.waiting.update(bodies)
        queue.publish_many(bodies)
        queue.sync()
        promises.synced()
        taken = queue.fetch_many(24)
        gone = {place for place in range(len(taken)) if place % 5 != 1 + round_}
        promises.leaving |= {taken[place].body for place in gone}
        promises.kept -= promises.leaving
        queue.ack([taken[place].sequence_id for place in sorted(gone)])
        queue.sync()
        promises.synced()


def served_by_reading(root: Path) -> list[bytes]:
    """The bodies as the read side serves them, without changing a byte of the store."""
    with VhostStore(str(root)) as store:
        rows = [store.read(info.topic, info.queue_id, info.start, info.stop) for info in store.queues()]
        return [body for batches in rows for batch in batches for body in batch.column("body").to_pylist()]
