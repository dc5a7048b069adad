"""Every bit of a record outside its body, and of a queue unit, flipped once: what the real stores then serve.

No row is read that no client decodes, and every row that is read is the one that is served. Left out is only what
interface.md 41 leaves out: a record whose magic, lengths, place, queue or topic are no longer those of its unit.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real import truth
from tests.real.oracle import Oracle
from tests.reference.rocketmq_record import NATIVE_COLUMNS, TIMES, Log, NotARecord
from tests.reference.served import AS_BROKER, Row, expected_row, in_partitions, place, read
from tests.support.rocketmq_files import entry, log_files, overwrite, queue_files, records, used_entries

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SETTINGS = {"mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 101}
HOSTS = {4: ("10.1.2.3:6000", "192.168.1.10:10911"), 6: ("[2001:db8::5]:6000", "[fe80::1]:10911")}
TOPICS, QUEUES, MESSAGES = ("orders", "a|b_c-d"), 3, 1900
RECOVERED_FILES = 4
"""A clean start reads the last files of the log and of each queue: what lies before them is served as it is."""
UNIT_BYTES, FIRST_UNITS = 20, 220
"""Bytes of a queue unit; units of each queue whose records lie before the recovered files."""

SIGN_OF_SIZE = (8, 7)
"""A real store throws at a unit with a negative size, at every pull, and serves nothing more of its queue."""


def made(version: str, hosts: int, store: Path) -> None:
    born, stored = HOSTS[hosts]
    store.mkdir()
    with Oracle(version, store, SETTINGS) as oracle:
        for number in range(MESSAGES):
            oracle.ask(op="clock", ms=1_700_000_000_000 + number * 10)
            oracle.ask(
                op="put", topic=TOPICS[number % len(TOPICS)], queueId=number % QUEUES, bornTs=1_700_000_000_000,
                bornHost=born, storeHost=stored, reconsumeTimes=0, pto=0, flag=0, sysFlag=0, body=f"body {number}",
                props={"KEYS": f"k{number} 键", "TAGS": "标签", "x": "y"},
            )  # fmt: skip
        oracle.ask(op="wait")


def flip(path: Path, position: int, bit: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 1 << bit]))


def flip_in_records(store: Path) -> int:
    """One bit in each record of the older files, each time another one; the number of flipped bits."""
    every = list(records(store))
    before = set(log_files(store)[:-RECOVERED_FILES])
    bits = [(at, bit) for at in range(max(row.size for row in every)) for bit in range(8)]
    random.Random(SEED).shuffle(bits)
    flipped = 0
    for row in (row for row in every if row.path in before and bits):
        at, bit = bits.pop()
        if at < row.size and not 0 <= row.position + at - row.body_position < row.body_size:
            flip(row.path, row.position + at, bit)
            flipped += 1
    return flipped


def flip_in_units(store: Path) -> int:
    """One bit in each unit of the older records; each bit several times. The number of flipped bits."""
    bits = [(at, bit) for at in range(UNIT_BYTES) for bit in range(8) if (at, bit) != SIGN_OF_SIZE]
    r, flipped = random.Random(SEED), 0
    for path in (path for path in queue_files(store) if path.parent.parent.name in TOPICS):
        first = int(path.name) // UNIT_BYTES
        for number in range(min(used_entries(path), FIRST_UNITS - first)):
            at, bit = bits[flipped % len(bits)] if flipped < len(bits) else r.choice(bits)
            flip(path, number * UNIT_BYTES + at, bit)
            flipped += 1
    return flipped


def right(message: dict[str, Any], log: Log, store: Path) -> bool:
    """Whether the record that a unit points at is one of interface.md 41."""
    told = entry(store, *message["foundAt"])
    assert told is not None
    try:
        fields = log.fields(message["unitOffset"])
    except NotARecord:
        return False
    found = (fields["topic"], fields["queueId"], fields["queueOffset"])
    return (found, fields["physicalOffset"], fields["size"]) == (message["foundAt"], *told[:2])


def is_utf8(raw: bytes) -> bool:
    """Of what is not, Java's decoder and Python's make different numbers of U+FFFD."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def problems(store: Path, told: truth.Truth, rows: list[Row]) -> Iterator[str]:
    log = Log(store / "commitlog")
    served = {(message["foundAt"], message["unitOffset"]): message for message in told.messages}
    mine = {(place(row), row["physicalOffset"]): row for row in rows}
    yield from (f"{at}: read, but not served" for at in mine.keys() - served.keys())
    for at, message in served.items():
        if at not in mine:
            if right(message, log, store):
                yield f"{at}: served and right, but not read"
            continue
        row = log.row(message["unitOffset"])
        told_as = message | {name: row[name] for name in TIMES if row[name] is None}
        if not is_utf8(row["rawProperties"]):
            told_as |= {"properties": dict(row["properties"])}
        expected = expected_row(told_as, log)
        yield from (f"{at}: {name}" for name in NATIVE_COLUMNS if mine[at][name] != expected[name])


@pytest.mark.parametrize("version", ["493", "533"])
@pytest.mark.parametrize("harm", ["records-4", "records-6", "units-4"])
def test_no_row_is_read_that_is_not_served(version: str, harm: str, tmp_path: Path) -> None:
    store, (what, hosts) = tmp_path / "store", harm.split("-")
    made(version, int(hosts), store)
    flipped = flip_in_records(store) if what == "records" else flip_in_units(store)
    assert flipped > 900
    told = truth.ask(version, store, SETTINGS)
    assert not told.never_answers, told.notes
    rows = read(store, in_partitions(1, **AS_BROKER), recovery=truth.RECOVERY[version])
    assert len(rows) >= MESSAGES - flipped
    assert list(problems(store, told, rows)) == []
