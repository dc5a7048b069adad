"""`cat --follow`: reads what arrives in the queues of stores, as a stream does.

The engine's `Tail` decides what is safe to read while a broker or a node runs (docs/streaming.md "While the store
grows").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from command_line.selection import Chosen
from storage_core.errors import OptionError
from storage_core.store import LATEST, OffsetBound, QueueKey, Scan
from storage_core.stream.selection import named_queues, selects
from storage_core.stream.tail import FollowedStore, StreamSnapshot, Tail


@dataclass
class Followed:
    """A store that is followed. `chosen` is what exists now, `read` how far each queue was read, `seals` what
    distinguishes each queue from another one.
    """

    chosen: Chosen
    tail: Tail
    read: dict[QueueKey, int]
    seals: dict[QueueKey, str] = field(default_factory=dict)

    def grown(self, snapshot: StreamSnapshot) -> dict[QueueKey, tuple[int, int]]:
        """The unread ranges of the selected queues, which count as read from now on."""
        takes = selects(self.chosen.request, self.chosen.named.holds_queues_only)
        ranges = {}
        for key, (first, stop) in snapshot.positions.items():
            if takes(key):
                # A queue that is shorter than before was cut by a broker start: what arrives there now is new.
                start = snapshot.lost(key, self.read[key], self.seals.get(key))[0] if key in self.read else first
                if stop > start:
                    ranges[key] = start, stop
                self.read[key] = max(start, stop)
        self.seals |= snapshot.seals({key: stop for key, (_, stop) in ranges.items()})
        return ranges


@contextmanager
def follow(chosen: Sequence[Chosen]) -> Iterator[list[Followed]]:
    """Follows the stores of a selection within the block. Raises OptionError for what cannot be followed."""
    for each in chosen:
        if each.request.scan is Scan.LOG:
            raise OptionError("--follow", "", "reads through the queues; leave out --scan log")
        if each.request.stop != OffsetBound(LATEST) or each.request.stop_ms is not None:
            raise OptionError("--follow", "", "has no end; leave out --stop and --to")
    with ExitStack() as stack:
        yield [_followed(each, stack) for each in chosen]


def _followed(chosen: Chosen, stack: ExitStack) -> Followed:
    store = chosen.named.store
    if not isinstance(store, FollowedStore):
        what = "quorum queues" if store.queue_type == "quorum" else "a store at a URI; it reads one on a local disk"
        raise OptionError("--follow", "", f"is not for {what}")
    tail = stack.enter_context(store.follow(named_queues(chosen.request)))
    snapshot = tail.settled()
    ends = {key: stop for key, (_, stop) in snapshot.positions.items()}
    return Followed(replace(chosen, snapshot=snapshot), tail, ends, snapshot.seals(ends))


def coming(
    followed: Sequence[Followed], interval_s: float, pause: Callable[[float], None] = time.sleep
) -> Iterator[pa.RecordBatch]:
    """Yields what arrives in the selected queues from now on, forever. Pauses before each look.

    Raises the errors of planning and reading.
    """
    while True:
        pause(interval_s)
        for each in followed:
            snapshot = each.tail.look()
            if ranges := each.grown(snapshot):
                for partition in snapshot.plan_ranges(each.chosen.request, ranges):
                    yield from partition.read()
