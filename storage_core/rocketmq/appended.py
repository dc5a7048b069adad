"""Units that only a dispatcher would write, by store time: where a time search goes on behind the queue files."""

from __future__ import annotations

from collections.abc import Iterable

from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.rocketmq.dispatch import Dispatcher
from storage_core.rocketmq.recovery import Verdict, walk_from
from storage_core.store import QueueKey


def first_appended_at(
    log: FileChain, verdict: Verdict, wanted: Iterable[QueueKey], time_ms: int, files: OpenFiles
) -> dict[QueueKey, int]:
    """For each wanted queue the first appended ordinal whose store time is not before `time_ms`; absent: none."""
    left = set(wanted)
    found: dict[QueueKey, int] = {}
    for replay in verdict.replays:
        dispatcher = Dispatcher(replay.tails, verdict.units_per_file)
        for walk in walk_from(log, files, replay.start, replay.stop, verdict.rules):
            for stretch in walk:
                units = dispatcher.feed(stretch)
                late = stretch.messages.column("store_ms")[units.rows] >= time_ms
                for queue, ordinal in zip(units.queue[late].tolist(), units.ordinals[late].tolist(), strict=True):
                    key = units.keys[queue]
                    if key in left and key not in replay.void:
                        left.remove(key)
                        found[key] = ordinal
                if not left:
                    return found
    return found
