"""One seed of the comparison with the real RocketMQ: a random store, damaged copies, what the real stores serve."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storage_core import open_store
from tests.real import random_store, truth
from tests.support.rocketmq_harm import Harm, harm


@dataclass
class Variant:
    """The store as it was made, or a damaged copy, with the answers of one or both real stores."""

    directory: Path
    harm: Harm
    has_5x_marks: bool
    truths: list[truth.Truth] = field(default_factory=list)

    def problems(self, partitions: int) -> Iterator[str]:
        """Where mqstore's answers differ."""
        for stock in self.truths:
            automatic = (stock.version == "533") == self.has_5x_marks
            if stock.never_answers:
                continue
            for line in truth.check(self.directory, stock, self.harm.touched, partitions, automatic):
                yield f"as {stock.version}{' (auto)' if automatic else ''}: {line}"
            options = {} if automatic else {"recovery": truth.RECOVERY[stock.version]}
            with open_store(str(self.directory), **options) as store:
                ends = {(queue.topic, queue.queue_id): queue.stop for queue in store.queues()}
            for line in truth.check_ends(stock, ends):
                yield f"as {stock.version}{' (auto)' if automatic else ''}: {line}"


@dataclass
class Case:
    """A seed's store and its variants."""

    seed: int
    made: random_store.RandomStore
    variants: list[Variant]
    partitions: int

    def problems(self) -> list[str]:
        """One line for each difference, with the variant's directory and story."""
        return [
            f"{variant.directory} [{'; '.join(variant.harm.story) or 'as made'}] {line}"
            for variant in self.variants
            for line in variant.problems(self.partitions)
        ]

    def explain(self) -> str:
        """How the variants came about."""
        stories = [f"  {v.directory.name}: {'; '.join(v.harm.story) or 'as made'}" for v in self.variants]
        return "\n".join([str(self.made), *stories])


def prepare(seed: int, work: Path) -> Case:
    """Makes the store of a seed and its variants below `work`, and queries the real stores; does not run mqstore."""
    r = random.Random(f"variants of {seed}")
    made = random_store.make(seed, work / "as-made")
    variants = [Variant(made.directory, Harm(), has_5x_marks(made.directory))]
    for number in range(3):
        copy = work / f"harmed-{number}"
        shutil.copytree(made.directory, copy)
        done = harm(copy, r)
        variants.append(Variant(copy, done, has_5x_marks(copy)))
    for variant in variants:
        own = "533" if variant.has_5x_marks else "493"
        other = "493" if variant.has_5x_marks else "533"
        versions = [own] if r.random() < 0.5 else [own, other]
        variant.truths = [truth.ask(version, variant.directory, made.settings) for version in versions]
    return Case(seed, made, variants, r.choice((2, 3, 7, 20)))


def has_5x_marks(store: Path) -> bool:
    """Whether a directory shows that a 5.x broker wrote it (interface.md 8). V2 records count only behind 5.x files."""
    abort, checkpoint = store / "abort", store / "checkpoint"
    return (
        (store / "abort.bak").exists()
        or (store / "compaction").exists()
        or (abort.exists() and abort.stat().st_size > 0)
        or (checkpoint.exists() and any(checkpoint.read_bytes()[24:40]))
    )
