"""Entries on their way to another process: few bytes, and the same entries behind them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.index.entries import (
    ENTRY,
    Entries,
    NumberedEntries,
    as_one,
    copied,
    filtered,
    joined,
    new_entries,
)
from storage_core.rabbitmq.index.packed_entries import CHUNK_ROWS, packed, unpacked
from storage_core.store import ScanRequest
from tests.rabbitmq import golden


def sent(entries: Entries) -> Entries:
    return unpacked(packed([NumberedEntries(entries)]))


@pytest.mark.parametrize("count", [0, 1, 2, 1000, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 77])
def test_entries_of_any_values_come_back(count: int) -> None:
    entries = np.frombuffer(random.Random(count).randbytes(count * ENTRY.itemsize), ENTRY)
    assert sent(entries).tobytes() == entries.tobytes()
    assert sent(new_entries(count)).tobytes() == new_entries(count).tobytes()
    alike = entries.copy()
    for name in ("expiry", "file", "flags"):
        alike[name] = entries[name][:1] if count else 0
    assert sent(alike).tobytes() == alike.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_any_shape_come_back(seed: int) -> None:
    chance = np.random.default_rng(seed)
    entries = new_entries(int(chance.integers(1, 40_000)))
    for name in ENTRY.names or ():
        kind = ENTRY[name]
        most = np.iinfo(kind).max >> int(chance.integers(0, 8 * kind.itemsize))
        values = chance.integers(0, most, len(entries), kind, endpoint=True)
        shape = chance.integers(0, 4)
        if shape == 0:  # runs of equal values
            values = values[np.sort(chance.integers(0, 40, len(entries))) % len(entries)]
        elif shape == 1:  # a straight line, which may go around
            values = np.arange(len(entries)).astype(kind) * values[0]
        elif shape == 2:  # rising, now and then from the beginning
            values = np.cumsum(values.astype(np.uint64) & 0x1FF).astype(kind)
        entries[name] = values
    assert sent(entries).tobytes() == entries.tobytes()


@pytest.mark.parametrize("counts", [[0], [5], [3, 0, 40], [CHUNK_ROWS, 1, CHUNK_ROWS + 5]])
def test_parts_are_numbered_anew_on_both_ways(counts: list[int]) -> None:
    chance, parts, rows = np.random.default_rng(len(counts)), [], []
    for number, count in enumerate(counts):
        entries = np.frombuffer(chance.bytes(count * ENTRY.itemsize), ENTRY).copy()
        entries["file"] = chance.integers(0, 3, count)
        files = chance.integers(0, 1000, 3)
        parts.append(NumberedEntries(entries, files, 7 - number))
        for row in entries.tolist():
            fields = dict(zip(ENTRY.names or (), row, strict=True))
            rows.append(tuple((fields | {"file": files[fields["file"]], "queue": 7 - number}).values()))
    kept = [part.entries.tobytes() for part in parts]
    for found in (as_one(parts), unpacked(packed(parts))):
        assert found.tolist() == rows
    assert [part.entries.tobytes() for part in parts] == kept


def test_entries_that_are_numbered_so_already_are_not_copied() -> None:
    entries = new_entries(3)
    assert as_one([NumberedEntries(entries)]) is entries


def test_structs_are_kept_and_joined_as_they_are() -> None:
    entries = np.frombuffer(random.Random(5).randbytes(100 * ENTRY.itemsize), ENTRY)
    mask = np.arange(100) % 3 == 1
    assert filtered(entries, mask).tobytes() == b"".join(entries[i].tobytes() for i in range(1, 100, 3))
    assert joined([entries[:40], entries[40:40], entries[40::2]]).tolist() == [
        *entries[:40].tolist(),
        *entries[40::2].tolist(),
    ]
    assert joined([entries]) is entries
    assert not np.shares_memory(copied([entries]), entries)


def test_a_partition_takes_few_bytes_for_each_message(tmp_path: Path) -> None:
    store = golden.unpack("s5_16384_kill9", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(store)) as opened:
        (partition,) = opened.snapshot().plan(ScanRequest())
    assert len(partition.entries) > 20_000
    assert len(pickle.dumps(partition)) < 2 * len(partition.entries)
