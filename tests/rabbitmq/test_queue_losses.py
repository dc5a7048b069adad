"""Power failures while a queue publishes, acknowledges, flushes, rolls, merges and stops: any part of the unconfirmed
changes may be on the disk. Messages that `sync` confirmed are present, those whose removal it confirmed are not.

`make test` tests a sample of the moments, with `MQSTORE_WHOLE=1` all of them; a run prints how many.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError
from storage_core.rabbitmq.queue import live_vhost
from storage_core.rabbitmq.queue.queue import Queue
from tests.lost_writes import Change, left_behind, recorded, survivors
from tests.support.queue_promises import SMALL, Promises, leave_gaps, served_by_reading, work
from tests.support.sampling import SEED, sample

pytestmark = pytest.mark.sampled

LOSSES = 12
"""How many moments of each work a sample has."""


@dataclass
class Dated(Promises):
    """Promises, and their earlier states by number of disk changes."""

    changes: list[Change] = field(default_factory=list)
    dates: list[tuple[int, Promises]] = field(default_factory=list)

    def synced(self) -> None:
        super().synced()
        self.note()

    def note(self) -> None:
        """Records what has been promised so far."""
        now = Promises(*(copy.copy(getattr(self, name)) for name in Promises.__dataclass_fields__))
        self.dates.append((len(self.changes), now))

    def at(self, moment: int) -> tuple[Promises, Promises]:
        """The promises before a moment, and those at the next sync or at the end."""
        before = [promises for count, promises in self.dates if count <= moment]
        after = [promises for count, promises in self.dates if count > moment]
        return before[-1], (after or before[-1:])[0]


def stopped(queue: Queue, promises: Promises) -> None:
    """A clean stop after some messages were fetched and some acknowledged."""
    bodies = [b"%03d" % number + b"." * (300 if number % 3 else 20) for number in range(30)]
    promises.waiting.update(bodies)
    queue.publish_many(bodies)
    queue.sync()
    promises.synced()
    taken = queue.fetch_many(12)
    gone = {taken[place].body for place in range(0, 12, 2)}
    promises.leaving |= gone
    promises.kept -= gone
    queue.ack([taken[place].sequence_id for place in range(0, 12, 2)])
    queue.close()
    promises.synced()


WORKS: dict[str, Callable[[Queue, Promises], None]] = {
    **{f"publish, ack, flush {seed}": lambda queue, promises, seed=seed: work(queue, promises, seed)  # type: ignore[misc]
       for seed in range(3)},
    "roll and combine": lambda queue, promises: leave_gaps(queue, promises, 7),
    "clean stop": stopped,
}  # fmt: skip


def played(root: Path, origin: Path, act: Callable[[Queue, Promises], None]) -> Dated:
    """Runs the work once in `root`; `origin` becomes a copy of the store before it."""
    with Queue(str(root), "q", SMALL):
        pass
    shutil.copytree(root, origin)
    with recorded(root) as changes:
        promises = Dated(changes=changes)
        promises.note()
        queue = Queue(str(root), "q", SMALL)
        act(queue, promises)
        promises.note()
        if not queue._vhost.closed:
            queue._vhost.abandon(KeyboardInterrupt())
    return promises


def check(root: Path, before: Promises, after: Promises, volatile: set[bytes], torn: bool) -> None:
    try:
        read: list[bytes] | None = served_by_reading(root)
    except CorruptionError as error:
        # No node starts with half a record in a segment; the next writer cuts it.
        if not torn or ".idx" not in str(error):
            raise
        read = None
    with Queue(str(root), "q", SMALL) as queue:
        bodies = [delivery.body for delivery in queue]
    assert read is None or bodies == read, "the read side serves what the next opening finds"
    assert len(set(bodies)) == len(bodies), "each message once"
    lost = before.kept - after.removed - after.leaving - set(bodies)
    assert not lost, f"confirmed and lost: {sorted(lost)}"
    assert not before.removed & set(bodies), "nothing whose removal was confirmed comes back"
    assert not volatile & set(bodies), "transient messages are gone"
    with Queue(str(root), "q", SMALL) as queue:
        assert [delivery.body for delivery in queue] == bodies, "a clean stop keeps what was not acknowledged"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORKS)
def test_what_was_confirmed_is_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr(live_vhost, "TICK_INTERVAL_S", 3600.0)
    promises = played(tmp_path / "live", tmp_path / "origin", WORKS[name])
    chance = random.Random(f"{SEED} {name}")
    choices = list(survivors(promises.changes, chance.randrange(1 << 30)))
    assert len(choices) > LOSSES
    points = Counter[str]()
    for number in sample(range(len(choices)), LOSSES, f"queue losses {name}"):
        moment, survives = choices[number]
        torn = number % 3 == 0
        state = left_behind(
            tmp_path / "origin", promises.changes, survives, tmp_path / "lost", chance if torn else None
        )
        before, after = promises.at(moment)
        try:
            check(state, before, after, promises.volatile, torn)
        except (AssertionError, CorruptionError, OSError) as error:
            lost = [f"{c.name} {c.path}" for c, safe in zip(promises.changes, survives, strict=False) if not safe]
            raise AssertionError(f"{name}, power lost at {moment} ({number}); lost: {lost}: {error}") from error
        shutil.rmtree(state)
        points["losses"] += 1
    record_property("crash points", dict(points))
