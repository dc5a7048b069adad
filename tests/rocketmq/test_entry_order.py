"""Whether entries are in the order of the log, compared with an obvious twin that checks them one by one."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from storage_core.files.file_chain import find_chain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY
from storage_core.rocketmq.disk import entry_order
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.entry_order import AROUND, stand_in_order

PER_FILE, LOG_END = 10, 5_000


@pytest.mark.parametrize("seed", range(40))
def test_the_order_is_that_of_the_twin(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(seed)
    monkeypatch.setattr(entry_order, "APART", r.choice((1, 3, 1 << 12)))
    first = r.randrange(4)
    entries = {number: entry(number, r) for number in range(first * PER_FILE, (first + r.randrange(1, 6)) * PER_FILE)}
    missing = r.choice((None, min(entries) // PER_FILE + 1))
    folder = tmp_path / "queue"
    folder.mkdir()
    for base in range(min(entries), max(entries), PER_FILE):
        if base // PER_FILE == missing:
            for number in range(base, base + PER_FILE):
                del entries[number]
            continue
        data = b"".join(struct.pack(">qiq", *entries[number], 0) for number in range(base, base + PER_FILE))
        (folder / f"{base * QUEUE_ENTRY.size:020d}").write_bytes(data)
    numbers = r.sample(sorted(entries), r.randrange(1, len(entries) + 1))
    queue = ConsumeQueue("orders", 0, find_chain([str(folder)]))
    with OpenFiles() as files:
        found = stand_in_order(queue, files, np.array(numbers), LOG_END)
    assert found.tolist() == [in_order(entries, number) for number in numbers]


def entry(number: int, r: random.Random) -> tuple[int, int]:
    """Mostly an entry that a dispatcher wrote; else one of another record, a filler, none, or one after the log end."""
    address = 7 + number * 100 + r.randrange(50)
    kinds = [(7 + r.randrange(60) * 100, 90), (0, BLANK_SIZE), (address, 0), (-1, 90), (LOG_END + number, 90), (0, 0)]
    return (address, 90) if r.random() < 0.7 else r.choice(kinds)


def in_order(entries: dict[int, tuple[int, int]], number: int) -> bool:
    """The rule of `stand_in_order`, for one entry."""

    def address(other: int) -> int | None:
        physical_offset, size = entries.get(other, (0, 0))
        return physical_offset if 0 < size != BLANK_SIZE and 0 <= physical_offset < LOG_END else None

    own = address(number)
    if own is None:
        return False
    before = [found for other in range(number - AROUND, number) if (found := address(other)) is not None]
    after = [found for other in range(number + 1, number + AROUND + 1) if (found := address(other)) is not None]
    if own in before or own in after:
        return False
    wrong_before, wrong_after = sum(found > own for found in before), sum(found < own for found in after)
    return 2 * wrong_before <= len(before) and 2 * wrong_after <= len(after)
