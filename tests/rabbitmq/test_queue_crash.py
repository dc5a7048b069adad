"""A writer killed at every write point of publish, ack, flush, roll and combine: what the next opening finds.

The n-th call that changes the disk has no effect, or half of it, and the writer dies. No message that a sync confirmed
may be lost, and none whose removal it confirmed may come back.
"""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError
from storage_core.rabbitmq.queue import live_vhost
from storage_core.rabbitmq.queue.queue import Queue
from tests.faults import Died, Faults, stopped_at
from tests.support.queue_promises import SMALL, Promises, leave_gaps, served_by_reading, work
from tests.support.sampling import WHOLE, distance, first_step

pytestmark = pytest.mark.sampled

FAR = distance(4)
"""The distance between the disk changes at which the writer is killed."""
STEPS = {
    "publish_many": "publish", "_publish": "publish", "ack": "ack", "flush": "flush", "_roll": "roll",
    "combine": "combine", "_maybe_delete": "delete", "sync": "sync",
}  # fmt: skip
"""Functions of the product, with the step of a user that each belongs to."""


@dataclass
class Kill:
    """Stops the writer before disk change number `at`. With `torn` half of a write reaches the disk; with `error` the
    call fails instead. `names` and `places` record the call that was under way, and the product's steps around it.
    """

    at: int
    torn: bool
    error: OSError | None = None
    names: set[str] = field(default_factory=set)
    places: set[tuple[str, str]] = field(default_factory=set)

    def noted(self, name: str) -> None:
        self.names.add(name)
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_name in STEPS and "storage_core" in frame.f_code.co_filename:
                self.places.add((STEPS[frame.f_code.co_name], name))
            frame = frame.f_back

    def stopping(self) -> AbstractContextManager[Faults]:
        """Kills the writer inside the block."""
        return stopped_at(self.at - 1, self.torn, self.error, self.noted)


def run(
    root: Path,
    promises: Promises,
    seed: int,
    kill: Kill,
    work: Callable[[Queue, Promises, int], None] = work,
) -> bool:
    """Runs the work. Returns whether it was completed."""
    queue = Queue(str(root), "q", SMALL)
    with kill.stopping():
        try:
            work(queue, promises, seed)
        except (Died, OSError) as error:
            queue._vhost.abandon(error)
    ended = not queue._vhost.closed
    if ended:
        queue._vhost.abandon(Died())
    queue.close()
    return ended


def check(root: Path, promises: Promises, torn: bool) -> None:
    read: list[bytes] | None = None
    try:
        read = served_by_reading(root)
    except CorruptionError as error:
        # No node starts with half a record in a segment; the next writer cuts it.
        if not torn or ".idx" not in str(error):
            raise
    with Queue(str(root), "q", SMALL) as queue:
        found = list(queue)
        bodies = [delivery.body for delivery in found]
        assert len(queue) == 0
    assert read is None or bodies == read, "the read side serves what the next opening finds"
    assert len(set(bodies)) == len(bodies), "each message once"
    assert [delivery.sequence_id for delivery in found] == sorted(delivery.sequence_id for delivery in found)
    assert promises.kept <= set(bodies), "nothing confirmed is lost"
    assert not promises.removed & set(bodies), "nothing whose removal was confirmed comes back"
    assert not promises.volatile & set(bodies), "transient messages are gone"
    assert set(bodies) <= promises.kept | promises.waiting | promises.leaving
    assert all(delivery.redelivered for delivery in found)
    with Queue(str(root), "q", SMALL) as queue:
        assert [delivery.body for delivery in queue] == bodies, "a clean stop keeps what was not acknowledged"


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_vhost, "TICK_INTERVAL_S", 3600.0)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_every_write_point(seed: int, torn: bool, tmp_path: Path) -> None:
    at, names, places = first_step(FAR, f"kill {seed} {torn}") + 1 - FAR, set(), set()
    while True:
        at += FAR
        kill = Kill(at, torn)
        root, promises = tmp_path / str(at), Promises()
        ended = run(root, promises, seed, kill)
        try:
            check(root, promises, torn)
        except AssertionError as error:
            raise AssertionError(f"killed at change {at} ({kill.names}): {error}") from error
        names |= kill.names
        places |= kill.places
        if ended:
            break
    assert at > 40
    assert {"pwrite", "fsync"} <= names
    if not WHOLE:
        return
    assert {"truncate", "unlink"} <= names
    assert {(step, name) for step in ("publish", "flush") for name in ("pwrite", "fsync", "truncate")} <= places
    assert {("ack", "unlink"), ("roll", "pwrite"), ("roll", "fsync"), ("delete", "unlink")} <= places


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_every_write_point_of_a_merge(torn: bool, tmp_path: Path) -> None:
    at, ended, places = first_step(FAR, f"merge {torn}") + 1 - FAR, False, set()
    while not ended:
        at += FAR
        kill = Kill(at, torn)
        root, promises = tmp_path / str(at), Promises()
        ended = run(root, promises, 7, kill, leave_gaps)
        try:
            check(root, promises, torn)
        except AssertionError as error:
            raise AssertionError(f"killed at change {at} ({kill.places}): {error}") from error
        places |= kill.places
    assert "combine" in {step for step, _ in places}
    if WHOLE:
        assert {("combine", name) for name in ("pwrite", "fsync", "rename", "sync_folder", "unlink")} <= places
        assert ("ack", "pwrite") in places


@pytest.mark.parametrize("seed", range(2))
def test_a_call_that_fails_at_every_write_point(seed: int, tmp_path: Path) -> None:
    """On a full disk or with too many open files the caller gets an error; the next opening finds what was promised."""
    at, ended, names = first_step(FAR, f"error {seed}") + 1 - FAR, False, set()
    while not ended:
        at += FAR
        code = (errno.ENOSPC, errno.EMFILE, errno.EIO)[at // FAR % 3]
        kill = Kill(at, False, OSError(code, os.strerror(code)))
        root, promises = tmp_path / str(at), Promises()
        ended = run(root, promises, seed, kill)
        assert ended is not bool(kill.names)
        check(root, promises, False)
        names |= kill.names
    assert at > 50
    assert {"pwrite", "fsync"} <= names
    if WHOLE:
        assert {"open_write", "truncate", "unlink"} <= names


def test_a_stop_that_fails_lets_go_of_the_store(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 60 for number in range(20)]
    at, ended = 0, False
    while not ended:
        at += 1
        root = tmp_path / str(at)
        queue = Queue(str(root), "q", SMALL)
        queue.publish_many(bodies)
        queue.sync()
        kill = Kill(at, False, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with suppress(OSError), kill.stopping():
            queue.close()
        ended = not kill.names
        with Queue(str(root), "q", SMALL, lock_timeout_s=0) as queue:
            assert [delivery.body for delivery in queue] == bodies, at
    assert at > 15


def test_a_kill_while_the_store_is_stopped_or_opened(tmp_path: Path) -> None:
    for phase in ("stop", "open"):
        at, ended = 0, False
        while not ended:
            at += 1
            root = tmp_path / f"{phase}-{at}"
            with Queue(str(root), "q", SMALL) as queue:
                queue.publish_many([b"%d" % number * 60 for number in range(20)])
                queue.sync()
                if phase == "stop":
                    ended = _killed(lambda queue=queue: queue.close(), at)
                    queue._vhost.abandon(Died())
            if phase == "open":
                ended = _killed(lambda root=root: Queue(str(root), "q", SMALL)._vhost.abandon(Died()), at)
            with Queue(str(root), "q", SMALL) as queue:
                assert [delivery.body for delivery in queue] == [b"%d" % number * 60 for number in range(20)], at
        assert at > 5, phase


def _killed(action: Callable[[], None], at: int) -> bool:
    """Whether the action was completed before the `at`-th change."""
    with suppress(Died), Kill(at, False).stopping():
        action()
        return True
    return False
