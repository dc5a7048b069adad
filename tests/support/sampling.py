"""Samples of test cases that take too long to run completely each time, chosen by a seed that every run prints.

`MQSTORE_SEED` is the seed. `MQSTORE_WHOLE=1`, as in `make test-real-full`, runs all cases. A module that samples is
marked `sampled`, so that this run finds it; tests/test_markers.py checks the mark.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
WHOLE = os.environ.get("MQSTORE_WHOLE", "0") == "1"


def sample(items: Sequence[Item], count: int, name: str) -> list[Item]:
    """`count` of the items, in their order; all with `MQSTORE_WHOLE=1`. Each `name` has its own sample."""
    if WHOLE or count >= len(items):
        return list(items)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(items)), count)
    return [items[number] for number in sorted(chosen)]


def first_step(distance: int, name: str) -> int:
    """The first step of a walk with this distance, less than `distance`."""
    return random.Random(f"{SEED} {name}").randrange(distance)


def distance(sampled: int) -> int:
    """The distance between the steps of a walk: `sampled`, or 1 with `MQSTORE_WHOLE=1`."""
    return 1 if WHOLE else sampled
