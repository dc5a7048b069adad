"""Entries sent to another process: few bytes, from which the same entries are restored."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.index.entries import FIELDS, Entries, filtered, joined, new_entries
from storage_core.rabbitmq.index.partition_entries import CHUNK_ROWS, EntryParts, PackedEntries
from storage_core.store import ScanRequest
from tests.rabbitmq import golden


def any_entries(seed: int, count: int, fields: dict[str, str] = FIELDS) -> Entries:
    chance = np.random.default_rng(seed)
    return Entries({name: np.frombuffer(chance.bytes(count * 8), "u8").astype(kind) for name, kind in fields.items()})


def listed(entries: Entries) -> dict[str, list[int]]:
    return {name: entries[name].tolist() for name in entries.fields}


def sent(entries: Entries) -> Entries:
    received: PackedEntries = pickle.loads(pickle.dumps(EntryParts((entries,)).packed()))
    assert received.fields == entries.fields
    return received.as_one()


@pytest.mark.parametrize("count", [0, 1, 2, 1000, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 77])
def test_entries_of_any_values_come_back(count: int) -> None:
    entries = any_entries(count, count)
    assert listed(sent(entries)) == listed(entries)
    assert listed(sent(new_entries(count))) == listed(new_entries(count))
    alike = {
        name: np.full(count, entries[name][0] if count else 0, FIELDS[name]) for name in ("expiry", "file", "flags")
    }
    assert listed(sent(entries.replaced(**alike))) == listed(entries.replaced(**alike))
    other = FIELDS | {"more": "i8", "size": "i2"}
    assert listed(sent(any_entries(count, count, other))) == listed(any_entries(count, count, other))


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_any_shape_come_back(seed: int) -> None:
    chance = np.random.default_rng(seed)
    entries = new_entries(int(chance.integers(1, 40_000)))
    for name, text in FIELDS.items():
        kind = np.dtype(text)
        most = np.iinfo(kind).max >> int(chance.integers(0, 8 * kind.itemsize))
        values = chance.integers(0, most, len(entries), kind, endpoint=True)
        shape = chance.integers(0, 4)
        if shape == 0:  # runs of equal values
            values = values[np.sort(chance.integers(0, 40, len(entries))) % len(entries)]
        elif shape == 1:  # a straight line, which may wrap around
            values = np.arange(len(entries)).astype(kind) * values[0]
        elif shape == 2:  # rising, wrapping around now and then
            values = np.cumsum(values.astype(np.uint64) & 0x1FF).astype(kind)
        entries[name] = values
    assert listed(sent(entries)) == listed(entries)


@pytest.mark.parametrize("counts", [[0], [5], [3, 0, 40], [CHUNK_ROWS, 1, CHUNK_ROWS + 5]])
def test_parts_are_the_same_planned_and_packed(counts: list[int]) -> None:
    parts = [any_entries(number, count) for number, count in enumerate(counts)]
    parts = [part.replaced(length=part["length"] >> 20) for part in parts]
    planned = EntryParts(tuple(parts))
    whole = {name: np.concatenate([part[name] for part in parts]).tolist() for name in FIELDS}
    for found in (planned, planned.packed(), planned.packed().packed()):
        assert listed(found.as_one()) == whole
        assert (found.count, found.record_bytes) == (sum(counts), sum(whole["length"]))
        sizes = [len(chunk) for chunk in found.chunks()]
        assert sizes == [min(CHUNK_ROWS, sum(counts) - start) for start in range(0, sum(counts), CHUNK_ROWS)]
        assert listed(joined([*found.chunks(), new_entries(0)])) == whole


def test_entries_are_kept_and_joined_as_they_are() -> None:
    entries = any_entries(5, 100)
    mask = np.arange(100) % 3 == 1
    assert listed(filtered(entries, mask)) == {name: column[1::3] for name, column in listed(entries).items()}
    assert filtered(entries, np.ones(100, bool)) is entries
    some = joined([entries[:40], entries[40:40], entries[40::2]])
    assert listed(some) == {name: column[:40] + column[40::2] for name, column in listed(entries).items()}
    assert joined([entries]) is entries
    assert entries.row(7) == {name: column[7] for name, column in listed(entries).items()}
    assert np.shares_memory(entries[:40]["size"], entries["size"])


def test_a_partition_takes_few_bytes_for_each_message(tmp_path: Path) -> None:
    store = golden.unpack("s5_16384_kill9", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(store)) as opened:
        (partition,) = opened.snapshot().plan(ScanRequest())
    assert partition.entries.count > 20_000
    assert len(pickle.dumps(partition)) < 2 * partition.entries.count
