"""Queues in which a dispatcher closed a gap.

After the gap, a record has a larger QUEUEOFFSET than the number of its entry. New messages after the next start
continue from the number of the entry, so that both are equal again.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import QUEUE_OFFSET_AT
from storage_core.store import Mode, OffsetBound, Scan, ScanRequest
from tests.reference.rocketmq_record import Log
from tests.reference.served import Row, in_partitions, read
from tests.support.rocketmq_files import overwrite, queue_files, records

COUNT, LOST, LATER = 40, range(12, 17), 10
NUMBERS = [number for number in range(COUNT) if number not in LOST]
LISTED = [*NUMBERS, *range(COUNT, COUNT + LATER)]
"""The numbers of the messages that the queue lists."""


def messages(numbers: range) -> pa.Table:
    return pa.table({
        "topic": ["orders"] * len(numbers),
        "queueId": pa.array([0] * len(numbers), pa.int32()),
        "key": [f"key-{number}" for number in numbers],
        "body": [f"{number}".encode() for number in numbers],
    })  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of 40 messages that lost the entries of five of them and closed the gap; ten more messages follow."""
    root = tmp_path / "store"
    with open_store(str(root), "rocketmq") as store:
        store.append(messages(range(COUNT)), consumeQueueFileEntries=100)
    (path,) = queue_files(root)
    entries = path.read_bytes()[: COUNT * QUEUE_ENTRY.size]
    left = entries[: LOST.start * QUEUE_ENTRY.size] + entries[LOST.stop * QUEUE_ENTRY.size :]
    overwrite(path, 0, left.ljust(len(entries), b"\0"))
    shutil.rmtree(root / ".mqstore")
    with open_store(str(root), "rocketmq") as store:
        store.append(messages(range(COUNT, COUNT + LATER)))
    return root


def point_to(directory: Path, number: int, other: int) -> None:
    """Makes an entry point to the record of another one."""
    (path,) = queue_files(directory)
    at = other * QUEUE_ENTRY.size
    overwrite(path, number * QUEUE_ENTRY.size, path.read_bytes()[at : at + QUEUE_ENTRY.size])


def listed(path: Path) -> set[int]:
    """The addresses in a queue file."""
    return {address for address, _, _ in struct.iter_unpack(">qiq", path.read_bytes())}


def shown(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row["queueOffset"], row["body"].decode()) for row in rows]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_gap_in_the_middle_damages_no_message(directory: Path, partitions: int) -> None:
    assert [row["queueOffset"] for row in Log(directory / "commitlog").right_records()][-LATER:] == list(
        range(len(NUMBERS), len(LISTED))
    )
    expected = [(at, str(number)) for at, number in enumerate(LISTED)]
    for mode in Mode:
        assert shown(read(directory, in_partitions(partitions, mode=mode))) == expected
    assert len(read(directory, ScanRequest(scan=Scan.LOG))) == COUNT + LATER


def test_offsets_are_those_that_the_queue_gives(directory: Path) -> None:
    bounds = {"start": OffsetBound(offsets={("orders", 0): 11}), "stop": OffsetBound(offsets={("orders", 0): 14})}
    assert shown(read(directory, ScanRequest(**bounds))) == [(11, "11"), (12, "17"), (13, "18")]


@pytest.mark.parametrize("number", [3, 20, 44, 14])
def test_a_key_finds_a_message_where_the_queue_has_it(directory: Path, number: int) -> None:
    expected = [] if number in LOST else [(LISTED.index(number), str(number))]
    for use_index in (True, False):
        found = read(directory, ScanRequest(keys=(f"key-{number}",), use_index=use_index))
        assert shown(found) == expected


@pytest.mark.parametrize(
    ("number", "other"),
    [(20, 5), (20, 40), (40, 39), (40, 41), (40, 43), (2, 9), (0, 1), (0, 30), (44, 43), (44, 2), (43, 44)],
)
def test_an_entry_that_leads_elsewhere_is_damage_and_no_other_one(directory: Path, number: int, other: int) -> None:
    point_to(directory, number, other)
    with pytest.raises(CorruptionError, match="QUEUEOFFSET are not those of the queue"):
        read(directory, ScanRequest())
    expected = [(at, str(listed)) for at, listed in enumerate(LISTED) if at != number]
    for partitions in (1, 3):
        found = read(directory, in_partitions(partitions, mode=Mode.DROPMALFORMED))
        assert sorted(shown(found)) == expected


def test_a_queue_that_began_again_and_went_on_is_no_damage(directory: Path) -> None:
    """Earlier messages were deleted, and repair lists them too: entries have larger numbers than their records."""
    (path,) = queue_files(directory)
    numbers = [*range(12), *range(23), *range(35, 45)]
    for row, number in zip(
        (row for row in records(directory) if row.physical_offset in listed(path)), numbers, strict=True
    ):
        overwrite(row.path, row.position + QUEUE_OFFSET_AT, number.to_bytes(8, "big"))
    expected = [(at, str(number)) for at, number in enumerate(LISTED)]
    assert shown(read(directory, ScanRequest())) == expected
