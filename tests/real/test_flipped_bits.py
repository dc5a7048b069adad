"""Every bit of a record outside its body, and of a queue unit, flipped once: what the real stores then serve.

No row is read that no client decodes, and every row that is read equals the one that is served. Only what interface.md
41 leaves out is missing: a record whose magic, lengths, place, queue or topic no longer match its unit.
"""

from __future__ import annotations

import itertools
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
from tests.support.rocketmq_files import entry, flip_bit, log_files, records, used_entries

pytestmark = pytest.mark.real

SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SETTINGS = {"mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 101}
HOSTS = {4: ("10.1.2.3:6000", "192.168.1.10:10911"), 6: ("[2001:db8::5]:6000", "[fe80::1]:10911")}
TOPICS, QUEUES, MESSAGES = ("orders", "a|b_cd"), 3, 1900
RECOVERED_FILES = 5
"""A clean start reads the last files of the log and of each queue; earlier files are served unchecked."""
UNIT_BYTES = 20

SIGN_OF_SIZE = (8, 7)
"""A real store throws in every pull that reaches a unit with a negative size: those that begin at it, or before it and
request more. Pulls that begin after it are served."""


def made(version: str, hosts: int, store: Path) -> None:
    """Makes a store whose records all have the same size, with their parts at the same positions."""
    born, stored = HOSTS[hosts]
    store.mkdir()
    with Oracle(version, store, SETTINGS) as oracle:
        for number in range(MESSAGES):
            oracle.ask(op="clock", ms=1_700_000_000_000 + number * 10)
            oracle.ask(
                op="put", topic=TOPICS[number % len(TOPICS)], queueId=number % QUEUES, bornTs=1_700_000_000_000,
                bornHost=born, storeHost=stored, reconsumeTimes=0, pto=0, flag=0, sysFlag=0, body=f"body {number:04}",
                props={"KEYS": f"k{number:04} 键", "TAGS": "标签", "x": "y"},
            )  # fmt: skip
        oracle.ask(op="wait")


def flip_in_records(store: Path) -> int:
    """Flips every bit outside the body, each in a different record of the older files; returns the number of bits."""
    before = set(log_files(store)[:-RECOVERED_FILES])
    older = [row for row in records(store) if row.path in before]
    (size,), (body,) = {row.size for row in older}, {row.body_position - row.position for row in older}
    bits = [(at, bit) for at in range(size) if not 0 <= at - body < older[0].body_size for bit in range(8)]
    random.Random(SEED).shuffle(bits)
    assert len(bits) <= len(older)
    for row, (at, bit) in zip(older, bits, strict=False):
        flip_bit(row.path, row.position + at, bit)
    return len(bits)


def flip_in_units(store: Path) -> int:
    """Flips each bit in turn, one per unit of the older queue files; returns the number of flipped bits."""
    bits = [(at, bit) for at in range(UNIT_BYTES) for bit in range(8) if (at, bit) != SIGN_OF_SIZE]
    units = [
        (path, number)
        for topic in TOPICS
        for queue_id in range(QUEUES)
        for path in sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())[:-RECOVERED_FILES]
        for number in range(used_entries(path))
    ]
    random.Random(SEED).shuffle(units)
    assert len(bits) <= len(units)
    for (path, number), (at, bit) in zip(units, itertools.cycle(bits), strict=False):
        flip_bit(path, number * UNIT_BYTES + at, bit)
    return len(units)


def right(message: dict[str, Any], log: Log, store: Path) -> bool:
    """Whether the record that a unit points to is right by interface.md 41."""
    expected = entry(store, *message["foundAt"])
    assert expected is not None
    try:
        fields = log.fields(message["unitOffset"])
    except NotARecord:
        return False
    found = (fields["topic"], fields["queueId"], fields["queueOffset"])
    return (found, fields["physicalOffset"], fields["size"]) == (message["foundAt"], *expected[:2])


def is_utf8(raw: bytes) -> bool:
    """Whether bytes are UTF-8; for others, Java's and Python's decoders produce different numbers of U+FFFD."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def problems(store: Path, stock: truth.Truth, rows: list[Row]) -> Iterator[str]:
    log = Log(store / "commitlog")
    served = {(message["foundAt"], message["unitOffset"]): message for message in stock.messages}
    mine = {(place(row), row["physicalOffset"]): row for row in rows}
    yield from (f"{at}: read, but not served" for at in mine.keys() - served.keys())
    for at, message in served.items():
        if at not in mine:
            if right(message, log, store):
                yield f"{at}: served and right, but not read"
            continue
        row = log.row(message["unitOffset"])
        corrected = message | {name: row[name] for name in TIMES if row[name] is None}
        if not is_utf8(row["rawProperties"]):
            corrected |= {"properties": dict(row["properties"])}
        expected = expected_row(corrected, log)
        yield from (f"{at}: {name}" for name in NATIVE_COLUMNS if mine[at][name] != expected[name])


@pytest.mark.parametrize("version", ["493", "533"])
@pytest.mark.parametrize("harm", ["records-4", "records-6", "units-4"])
def test_no_row_is_read_that_is_not_served(version: str, harm: str, tmp_path: Path) -> None:
    store, (what, hosts) = tmp_path / "store", harm.split("-")
    made(version, int(hosts), store)
    flipped = flip_in_records(store) if what == "records" else flip_in_units(store)
    stock = truth.ask(version, store, SETTINGS)
    assert not stock.never_answers, stock.notes
    rows = read(store, in_partitions(1, **AS_BROKER), recovery=truth.RECOVERY[version])
    assert len(rows) >= MESSAGES - flipped
    assert list(problems(store, stock, rows)) == []


@pytest.mark.parametrize("version", ["493", "533"])
def test_a_negative_size_stops_every_pull_that_comes_to_it(version: str, tmp_path: Path) -> None:
    store, broken = tmp_path / "store", 7
    made(version, 4, store)
    first = min((store / "consumequeue" / TOPICS[0] / "0").iterdir())
    flip_bit(first, broken * UNIT_BYTES + SIGN_OF_SIZE[0], SIGN_OF_SIZE[1])
    queue = {"topic": TOPICS[0], "queueId": 0}
    rows = read(store, in_partitions(1, assign=((TOPICS[0], 0),), **AS_BROKER), recovery=truth.RECOVERY[version])
    with Oracle(version, store, SETTINGS) as oracle:
        every = range(oracle.ask(op="minmax", **queue)["max"])
        ranges = [(broken - 1, 1), (broken - 1, 2), (broken, 1), (broken + 1, 2)]
        pulls = [oracle.ask(op="get", offset=at, max=count, **queue) for at, count in ranges]
    assert ["newLimit" in pull.get("error", "") for pull in pulls] == [False, True, True, False]
    assert [pulls[0]["status"], pulls[3]["status"]] == ["FOUND", "FOUND"]
    assert [row["queueOffset"] for row in rows] == [at for at in every if at != broken]
