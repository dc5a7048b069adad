"""Recreates the stores of tests/golden/rocketmq/ledger: `python -m tests.real.make_ledger_stores [NAME ...]`.

Each is stored with the messages that a consumer of the real broker gets. One broker had no DLedger at first and was
stopped; the other was killed, and its next startup leaves out the last messages.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path

from tests.golden.archive import GOLDEN
from tests.real.golden_store import keep
from tests.real.ledgers import Story
from tests.real.maker import make_requested

TARGET = GOLDEN / "rocketmq" / "ledger"
SEED = 20261133
VISITS = {
    "stopped-4.9.3": ((False, False, 0), (True, True, 0), (True, False, 0)),
    "killed-5.3.3": ((True, False, 0), (True, True, 5)),
}


def make(name: str) -> None:
    """Writes the archive of a store and its truth."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(name.rpartition("-")[2], Path(folder) / "store", random.Random(f"{SEED} {name}"))
        story.sizes["mappedFileSizeCommitLog"] = 32 << 10
        for with_ledger, kill, pause_s in VISITS[name]:
            story.visit(with_ledger, kill, pause_s)
        keep(story.store, story.consumed, TARGET / name)


if __name__ == "__main__":
    make_requested({name: partial(make, name) for name in VISITS}, __doc__)
