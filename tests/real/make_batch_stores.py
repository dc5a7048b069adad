"""Recreates the stores of tests/golden/rocketmq/batched: `python -m tests.real.make_batch_stores [NAME ...]`.

Each is stored with the messages that a consumer of the real broker gets. One broker was stopped, the other killed.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path

from tests.golden.archive import GOLDEN
from tests.real.batch_queues import Story
from tests.real.golden_store import keep
from tests.real.maker import make_requested

TARGET = GOLDEN / "rocketmq" / "batched"
SEED = 20261129
KILLS = {"stopped-5.3.3": (True, False), "killed-5.3.3": (False, True)}
"""Whether the broker is killed at the end of each visit."""


def make(name: str) -> None:
    """Writes the archive of a store and its truth."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "store", random.Random(f"{SEED} {name}"))
        for kill in KILLS[name]:
            story.visit(kill)
        keep(story.store, story.consumed, TARGET / name)


if __name__ == "__main__":
    make_requested({name: partial(make, name) for name in KILLS}, __doc__)
