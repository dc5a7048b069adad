"""Operations to interrupt, and how each one is tried: stopped at a call, writes lost, calls failed, transfers short.

A `Work` is anything that changes a store. Whatever happens during it, a reader sees the store as before or as after,
an error is a one-line mqstore error, and a second run ends as it would have ended without the interruption.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage_core.errors import MqStoreError
from tests.faults import CHANGES, READS, Died, Faults, owned_by_nobody, short_transfers, stopped_at, struck
from tests.lost_writes import Change, left_behind, recorded, survivors
from tests.support.sampling import sample

CODES = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE)
NEVER_FAIL = ("exists", "is_folder", "real_path", "matching", "data_spans")
"""Queries that return an answer instead of failing; the last reads a file that was just opened."""
FAILING = (*CHANGES, *(name for name in READS if name not in NEVER_FAIL))

State = object


@dataclass
class Work:
    """One change of a store below a folder.

    `make` creates the store, `do` changes it, `seen` returns what a reader finds and changes nothing, `again` is the
    next run: the same change or another. `between` returns states that a reader may find during the change; None
    allows any.
    """

    name: str
    make: Callable[[Path], None]
    do: Callable[[Path], None]
    seen: Callable[[Path], State]
    again: Callable[[Path], None]
    between: Callable[[State, State], list[State]] | None = lambda _before, _after: []


@dataclass
class Trial:
    """The trials of one work, in a folder of their own. `points` counts the interruptions tried, by kind."""

    work: Work
    folder: Path
    seed: int
    points: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.origin.mkdir(parents=True)
        self.work.make(self.origin)
        self.expected = self._expected()

    @property
    def origin(self) -> Path:
        """The store before the work."""
        return self.folder / "origin"

    @contextmanager
    def copy(self, source: Path | None = None) -> Iterator[Path]:
        """A copy to work on, which is removed afterwards."""
        target = self.folder / "copy"
        shutil.copytree(source or self.origin, target)
        try:
            yield target
        finally:
            shutil.rmtree(target)

    def _expected(self) -> tuple[State, State, State, State]:
        """What is seen before and after the work, and after the next run on each of these."""
        with self.copy() as copy:
            before = self.work.seen(copy)
            self.work.again(copy)
            after_absent = self.work.seen(copy)
        with self.copy() as copy:
            self.work.do(copy)
            after = self.work.seen(copy)
            self.work.again(copy)
            return before, after, after_absent, self.work.seen(copy)

    def check(self, copy: Path, where: str, whole: bool = False) -> None:
        """Checks a store that was left midway; `whole`: the work had completed."""
        before, after, after_absent, after_whole = self.expected
        found = None
        if self.work.between is not None or whole:
            found = self.work.seen(copy)
            allowed = [after] if whole else [before, after, *(self.work.between or (lambda *_: []))(before, after)]
            assert found in allowed, f"{where}: a reader sees neither the store before nor after it"
        try:
            self.work.again(copy)
        except (MqStoreError, OSError) as error:
            raise AssertionError(f"{where}: the next run fails: {error}") from error
        end = self.work.seen(copy)
        wanted = [after_whole] if found == after != before else [after_absent, after_whole]
        assert end in wanted, f"{where}: the next run does not end as it should"

    # -- ways to be stopped

    def stops(self, count: int) -> None:
        """The process dies at a call, every other time in the middle of a write."""
        with self.copy() as copy, stopped_at(None) as clock:
            self.work.do(copy)
        for last in sample(range(clock.count), count, f"stops {self.work.name}"):
            with self.copy() as copy:
                try:
                    with stopped_at(last, torn=last % 2 == 0) as faults:
                        self.work.do(copy)
                except Died:
                    pass
                self.check(copy, f"{self.work.name}, gone at {last} of {clock.count}: {faults.log[-1]}")
            self.points["stops"] += 1

    def losses(self, count: int) -> None:
        """The power fails: any part of what no sync confirmed is on the disk."""
        changes = self._recorded()
        chance = random.Random(f"{self.seed} losses {self.work.name}")
        choices = list(survivors(changes, chance.randrange(1 << 30)))
        for number in sample(range(len(choices)), count, f"losses {self.work.name}"):
            moment, survives = choices[number]
            state = left_behind(
                self.origin, changes, survives, self.folder / "lost", chance if number % 3 == 0 else None
            )
            lost = [f"{c.name} {c.path}" for c, safe in zip(changes, survives, strict=False) if not safe]
            now = f"{changes[moment - 1].name} {changes[moment - 1].path}" if moment else "the start"
            where = f"{self.work.name}, power lost at {moment} of {len(changes)}, after {now}; lost: {lost}"
            self.check(state, where, whole=moment == len(changes))
            shutil.rmtree(state)
            self.points["losses"] += 1

    def _recorded(self) -> list[Change]:
        with self.copy() as copy, owned_by_nobody(), recorded(copy) as changes:
            self.work.do(copy)
        return changes

    def errors(self, count: int) -> None:
        """One call fails: it causes a one-line mqstore error or none, and the store is as before or fully changed."""
        with self.copy() as copy, owned_by_nobody(), struck(Faults(counted=FAILING)) as clock:
            self.work.do(copy)
        for last in sample(range(clock.count), count, f"errors {self.work.name}"):
            code = CODES[last % len(CODES)]
            error = OSError(code, os.strerror(code))
            with self.copy() as copy:
                text = None
                try:
                    with owned_by_nobody(), struck(Faults(last, error=error, counted=FAILING)) as faults:
                        self.work.do(copy)
                except MqStoreError as caught:
                    text = str(caught)
                    assert "\n" not in text
                where = f"{self.work.name}, {os.strerror(code)} at {last} of {clock.count}: {faults.log[last]} ({text})"
                self.check(copy, where, whole=text is None)
            self.points["errors"] += 1

    def short_transfers(self) -> None:
        """Every read and write transfers only a part of what was requested."""
        with self.copy() as copy:
            with short_transfers(self.seed, most=60) as cut:
                self.work.do(copy)
            assert cut.count > 3
            self.check(copy, f"{self.work.name}, by pieces", whole=True)
        self.points["by pieces"] += 1
