"""A queue with one entry whose address is damaged: a filter or a lookup leaves no other message of the queue out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.store import Predicate
from tests.golden import archive
from tests.reference.served import by_place
from tests.support.rocketmq_files import overwrite


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return archive.unpack("mixed-4.9.3", tmp_path)


def the_longest_queue(store: Path) -> tuple[Path, int]:
    """A queue file, and the number of its entries."""
    lengths = {file: len(file.read_bytes().rstrip(b"\0")) for file in (store / "consumequeue").glob("*/*/*")}
    file = max(lengths, key=lambda each: lengths[each])
    return file, -(-lengths[file] // QUEUE_ENTRY.size)


@pytest.mark.parametrize("address", [0, 5_000, 1 << 40])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_rows_of_a_part_of_the_log(store: Path, address: int, where: str) -> None:
    file, count = the_longest_queue(store)
    at = {"first": 1, "middle": count // 2, "last": count - 1}[where]
    overwrite(file, at * QUEUE_ENTRY.size, address.to_bytes(8, "big"))
    rows = by_place(store, 1)
    edges = sorted(row["physicalOffset"] for row in rows)
    for edge in edges[:: len(edges) // 5]:
        for op, half in ((">=", [row for row in rows if row["physicalOffset"] >= edge]),
                         ("<", [row for row in rows if row["physicalOffset"] < edge])):  # fmt: skip
            assert by_place(store, 2, predicates=(Predicate("physicalOffset", op, edge),)) == half
    shutil.rmtree(store / "index")
    keyed = [row for row in rows if row["keys"]]
    for word in {row["keys"][0] for row in keyed[:: len(keyed) // 20]}:
        found = by_place(store, 2, keys=(word,))
        assert found == [row for row in rows if word in (row["keys"] or ())]
