"""Measurements: contenders take turns in every round, and the result is the median of their ratios within a round.

The contenders belong to `scan`, `decoder`, `shape` and the other questions, the presentation to `report`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.machine import usage

Contenders = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Run:
    """One run of one contender. `foreign` is the mean number of cores that other processes used meanwhile."""

    wall_s: float
    cpu_s: float
    foreign: float


@dataclass(frozen=True)
class Rounds:
    """Runs by contender; run i of each belongs to round i."""

    runs: Mapping[str, list[Run]]

    def wall_s(self, name: str) -> float:
        """The median time of a contender."""
        return median(run.wall_s for run in self.runs[name])

    def best_s(self, name: str) -> float:
        """The shortest time of a contender."""
        return min(run.wall_s for run in self.runs[name])

    def cpu_s(self, name: str) -> float:
        """The median CPU time of a contender, with the processes it uses."""
        return median(run.cpu_s for run in self.runs[name])

    def faster(self, name: str, than: str) -> float:
        """How many times faster `name` is: the median over rounds."""
        return median(b.wall_s / a.wall_s for a, b in zip(self.runs[name], self.runs[than], strict=True))

    def cheaper(self, name: str, than: str) -> float:
        """The same in CPU time."""
        pairs = zip(self.runs[name], self.runs[than], strict=True)
        return median(max(b.cpu_s, 1e-9) / max(a.cpu_s, 1e-9) for a, b in pairs)

    @property
    def foreign(self) -> float:
        """Cores used by other processes, the median of all runs."""
        return median(run.foreign for runs in self.runs.values() for run in runs)


def interleaved(
    contenders: Contenders, rounds: int, warm_ups: int = 1, between: Callable[[], object] | None = None
) -> Rounds:
    """Runs every contender once per round, in an order that is reversed every other round, after uncounted warm-ups.

    `between` is called before each run and is not counted.
    """
    for _ in range(warm_ups):
        for work in contenders.values():
            work()
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            if between is not None:
                between()
            runs[name].append(timed(contenders[name]))
    return Rounds(runs)


def timed(work: Callable[[], object]) -> Run:
    """Runs something once."""
    before = usage()
    work()
    after = usage()
    wall, own = max(after.wall - before.wall, 1e-9), after.own_cpu - before.own_cpu
    return Run(wall, own, max(after.all_cpu - before.all_cpu - own, 0.0) / wall)
