"""Makes the stores of tests/golden/rocketmq/ledger anew: `python -m tests.real.make_ledger_stores [NAME ...]`.

Each with what a consumer of the real broker gets: one of a broker that had no DLedger at first and was stopped, and one
that was killed: of this one a start leaves out the last messages.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path

from tests.golden.archive import GOLDEN
from tests.real.golden_store import keep
from tests.real.ledgers import Story
from tests.real.maker import make_asked

TARGET = GOLDEN / "rocketmq" / "ledger"
SEED = 20261133
VISITS = {
    "stopped-4.9.3": ((False, False, 0), (True, True, 0), (True, False, 0)),
    "killed-5.3.3": ((True, False, 0), (True, True, 5)),
}


def make(name: str) -> None:
    """Writes an archive and its truth."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(name.rpartition("-")[2], Path(folder) / "store", random.Random(f"{SEED} {name}"))
        story.sizes["mappedFileSizeCommitLog"] = 32 << 10
        for with_ledger, kill, pause_s in VISITS[name]:
            story.visit(with_ledger, kill, pause_s)
        keep(story.store, story.consumed, TARGET / name)


if __name__ == "__main__":
    make_asked({name: partial(make, name) for name in VISITS}, __doc__)
