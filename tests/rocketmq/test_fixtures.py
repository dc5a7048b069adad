"""Every fixture that real RocketMQ made, read through the storage core's API: rows equal the truth in every column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from storage_core.store import Mode, Scan
from tests.golden import archive
from tests.reference.rocketmq_record import NATIVE_COLUMNS, Damaged, Log
from tests.reference.served import AS_BROKER, Row, differences, expected_row, in_partitions, place, read

NAMES = archive.names()

NAMED_ERRORS = (
    "CorruptionError", "FormatError", "TornWriteError", "UnsupportedFormatError", "OffsetOutOfRangeError",
    "DataLossError",
)  # fmt: skip


@dataclass
class Fixture:
    """An unpacked store, and what the real system reported about it."""

    name: str
    directory: Path
    before: dict[str, tuple[int, int, str]]

    @cached_property
    def info(self) -> dict[str, Any]:
        return archive.info(self.name)

    @cached_property
    def log(self) -> Log:
        return Log(self.directory / "commitlog")

    @cached_property
    def expected(self) -> list[Row]:
        return [expected_row(message, self.log) for message in archive.truth(self.name)]

    @property
    def damaged(self) -> bool:
        return self.name.startswith("damaged-")


@pytest.fixture(scope="module", params=NAMES)
def fixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    directory = archive.unpack(request.param, tmp_path_factory.mktemp(request.param))
    made = Fixture(request.param, directory, archive.fingerprint(directory))
    yield made
    assert archive.fingerprint(directory) == made.before, "reading changed the directory"


def test_all_fixtures_are_here() -> None:
    assert len(NAMES) == 24


@pytest.mark.parametrize("partitions", [1, 7])
def test_rows_equal_the_truth_in_every_column(fixture: Fixture, partitions: int) -> None:
    rows = read(fixture.directory, in_partitions(partitions, **AS_BROKER))

    assert differences(fixture.expected, rows) == []
    assert list(rows[0]) == list(NATIVE_COLUMNS)
    assert archive.fingerprint(fixture.directory) == fixture.before


def test_seven_partitions_are_seven_and_keep_each_queue_in_order(fixture: Fixture) -> None:
    """Units that only a dispatcher would write are walked in one piece; everything else is divided."""
    with open_store(str(fixture.directory)) as store:
        partitions = store.snapshot().plan(in_partitions(7, **AS_BROKER))
    rows = read(fixture.directory, in_partitions(7, columns=("topic", "queueId", "queueOffset"), **AS_BROKER))

    assert len(partitions) >= (1 if fixture.name == "damaged-queues-lost-4.9.3" else 7)
    by_queue: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        by_queue.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


def test_failfast_gives_the_same_rows_or_a_named_error(fixture: Fixture) -> None:
    failure, rows = "", []
    try:
        rows = read(fixture.directory, in_partitions(1, mode=Mode.FAILFAST))
    except MqStoreError as error:
        failure = str(error)

    if failure:
        assert fixture.damaged, f"an intact store failed: {failure}"
        assert any(name in failure for name in NAMED_ERRORS)
        assert str(fixture.directory) in failure
        assert "\n" not in failure
    else:
        assert differences(fixture.expected, rows) == []


def test_a_served_body_with_a_flipped_bit_fails_fast_with_its_physical_offset(tmp_path: Path) -> None:
    directory = archive.unpack("damaged-flipped-body-4.9.3", tmp_path)

    with pytest.raises(MqStoreError) as caught:
        read(directory, in_partitions(1, mode=Mode.FAILFAST))

    assert str(caught.value).startswith("CorruptionError: ")
    assert f"{directory}/commitlog/00000000000000016384 at {17320 - 16384}" in str(caught.value)
    rows = read(directory, in_partitions(1, mode=Mode.DROPMALFORMED))
    assert len(rows) == len(archive.truth("damaged-flipped-body-4.9.3")) - 1
    assert 17320 not in {row["physicalOffset"] for row in rows}


def test_queue_ends_are_those_of_the_real_store(fixture: Fixture) -> None:
    with open_store(str(fixture.directory)) as store:
        queues = {(queue.topic, queue.queue_id): (queue.start, queue.stop) for queue in store.queues()}
    first: dict[tuple[str, int], int] = {}
    for topic, queue_id, queue_offset in sorted(place(row) for row in fixture.expected):
        first.setdefault((topic, queue_id), queue_offset)

    assert fixture.info["truth"]["queues"]
    for queue in fixture.info["truth"]["queues"]:
        name = (queue["topic"], queue["queueId"])
        start, stop = queues[name]
        assert stop == queue["max"], name
        if name in first:
            assert start == first[name], name


@pytest.mark.parametrize("partitions", [1, 7])
def test_log_scan_holds_every_right_record(fixture: Fixture, partitions: int) -> None:
    rows = read(fixture.directory, in_partitions(partitions, scan=Scan.LOG, **AS_BROKER))
    expected = []
    for fields in fixture.log.right_records():
        try:
            expected.append(fixture.log.row(fields["physicalOffset"]))
        except Damaged:
            assert (fixture.name, fields["physicalOffset"]) == ("damaged-flipped-body-late-4.9.3", 116229)

    assert differences(expected, rows) == []
    assert [row["physicalOffset"] for row in rows] == sorted(row["physicalOffset"] for row in rows)
    assert archive.fingerprint(fixture.directory) == fixture.before


BEYOND_THE_LOG_ALONE = {
    "damaged-flipped-body-late-4.9.3": {"intact behind the cut": 118},
    "mixed-4.9.3": {"prepared": 99, "rollback": 84},
    "mixed-5.3.3": {"prepared": 60, "rollback": 62},
}
"""Rows of `scan=log` that the real store does not serve from the commit log alone; none for all other stores.

Prepared and rollback records have no queue. After a wrong CRC, recovery discards the rest of the log;
the record with the wrong CRC is compressed and no longer inflates, so it is no row either."""


def test_log_scan_contains_what_the_real_store_finds_in_the_log_alone(fixture: Fixture) -> None:
    served = {row["physicalOffset"] for row in fixture.expected}
    alone = fixture.info.get("fromLogAlone")
    if alone:
        served = (served | set(alone["notInTruth"])) - set(alone["missing"])
        assert len(served) == alone["messages"]
    rows = read(fixture.directory, in_partitions(1, scan=Scan.LOG, **AS_BROKER))
    beyond = Counter(_why(row, max(served)) for row in rows if row["physicalOffset"] not in served)

    assert served <= {row["physicalOffset"] for row in rows}
    assert beyond == BEYOND_THE_LOG_ALONE.get(fixture.name, {})


def _why(row: Row, last_served: int) -> str:
    kind = row["sysFlag"] & 12
    if kind in (4, 12):
        return "prepared" if kind == 4 else "rollback"
    return "intact behind the cut" if row["physicalOffset"] > last_served else "unexplained"
