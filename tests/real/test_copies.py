"""What mqstore reads from the log of a random store of the real systems and writes with `preserve=true` is the same
store byte for byte: commit log, queues and index, or only the commit log if the store lost files or crashed.

`MQSTORE_COPIES` sets the number of seeds (100 in `make test-real-full`), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.real import random_store
from tests.support.rocketmq_copies import contents, copy_log, drop_unused, write_options

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_COPIES", "3")))


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_of_random_stores_are_equal(seed: int, tmp_path: Path) -> None:
    r = random.Random(f"copy {seed}")
    intact, light = r.random() < 0.7, r.random() < 0.3
    made = random_store.make(seed, tmp_path / "made" / "store", intact, light)
    copy_log(made.directory, tmp_path / "copy", write_options(made.settings), r.choice((1, 3)))
    problems = []
    kinds = ["commitlog"] + (["consumequeue", "index"] if intact else [])
    if not made.settings.get("messageIndexEnable", True):
        kinds = [kind for kind in kinds if kind != "index"]
    for kind in kinds:
        ours, theirs = contents(tmp_path / "copy", kind), drop_unused(contents(made.directory, kind))
        if kind == "consumequeue" and made.light and (made.upgraded or made.version == "493"):
            ours, theirs = entries_by_queue(ours), entries_by_queue(theirs)
        if kind == "consumequeue" and made.settings.get("enableConsumeQueueExt"):
            ours, theirs = without_tags_codes(ours), without_tags_codes(theirs)
        if [n for n, _ in ours] != [n for n, _ in theirs]:
            names = {n for n, _ in ours} ^ {n for n, _ in theirs}
            problems.append(f"{kind}: only one has {sorted(names)}")
        else:
            problems += [
                f"{kind} {place}" for (place, mine), (_, wanted) in zip(ours, theirs, strict=True) if mine != wanted
            ]
    assert not problems, (str(made), problems)


def entries_by_queue(files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The entries of each queue except empty ones: after a restart, 4.9 leaves one at the start of a file that it made
    for a message of a light queue and then ignored (rocketmq.md 3.8).
    """
    queues: dict[str, bytes] = {}
    for name, data in files:
        entries = (data[at : at + 20].ljust(20, b"\0") for at in range(0, len(data), 20))
        folder = name.rpartition("/")[0]
        queues[folder] = queues.get(folder, b"") + b"".join(entry for entry in entries if any(entry))
    return list(queues.items())


def without_tags_codes(files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The physical offset and size of each entry: with enableConsumeQueueExt, a broker has the address of a unit in
    `consumequeue_ext` in place of the tags code, and a write makes no units (rocketmq.md 3.6).
    """
    return [
        (name, b"".join(data[at : at + 12].ljust(12, b"\0") for at in range(0, len(data), 20))) for name, data in files
    ]
