"""Samples of what takes too long to be run whole each time: chosen by a seed that every run prints.

`MQSTORE_SEED` is the seed. `MQSTORE_WHOLE=1`, as in `make test-real-full`, runs all of it. A module that samples is
marked `sampled`, so that run finds it; tests/test_markers.py checks that.
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
    """`count` of the items, in their order; all with `MQSTORE_WHOLE=1`. Each `name` has a sample of its own."""
    if WHOLE or count >= len(items):
        return list(items)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(items)), count)
    return [items[number] for number in sorted(chosen)]


def first_step(distance: int, name: str) -> int:
    """Where a walk with this distance begins: below `distance`."""
    return random.Random(f"{SEED} {name}").randrange(distance)


def distance(sampled: int) -> int:
    """How far apart the steps of a walk are: `sampled`, and 1 with `MQSTORE_WHOLE=1`."""
    return 1 if WHOLE else sampled
