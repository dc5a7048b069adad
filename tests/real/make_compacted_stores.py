"""Recreates the stores of tests/golden/rocketmq/compacted: `python -m tests.real.make_compacted_stores [NAME ...]`.

Each is stored with the messages that a consumer of the real broker gets. One broker was stopped after compactions, the
other killed.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path

from tests.golden.archive import GOLDEN
from tests.real.compacted import NEVER_MS, OFTEN_MS, Story
from tests.real.golden_store import keep
from tests.real.maker import make_requested

TARGET = GOLDEN / "rocketmq" / "compacted"
SEED = 20261129
VISITS = {
    "stopped-5.3.3": ((OFTEN_MS, False), (NEVER_MS, False)),
    "killed-5.3.3": ((OFTEN_MS, False), (OFTEN_MS, True)),
}


def make(name: str) -> None:
    """Writes the archive of a store and its truth."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "store", random.Random(f"{SEED} {name}"))
        for interval_ms, kill in VISITS[name]:
            story.visit(interval_ms, kill)
        keep(story.store, story.consumed, TARGET / name)


if __name__ == "__main__":
    make_requested({name: partial(make, name) for name in VISITS}, __doc__)
