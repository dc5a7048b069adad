"""The views of files, compared with files read entry by entry."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from tests.golden import archive

STORE_TIME_POSITION = 56
NAMES = [name for name in archive.names() if not name.startswith(("defaults", "damaged-index-lost"))]


def rows(directory: Path, view: str) -> list[dict[str, Any]]:
    with open_store(str(directory)) as store:
        found = [row for batch in store.view(view) for row in batch.to_pylist()]
        assert all(list(row) == store.view_schema(view).names for row in found)
    return found


def milliseconds(value: Any) -> int:
    return round(value.timestamp() * 1000)


@pytest.mark.parametrize("name", NAMES)
def test_index_entries(name: str, tmp_path: Path) -> None:
    directory = archive.unpack(name, tmp_path)
    if name == "damaged-index-header-4.9.3":
        return
    slots = archive.info(name)["settings"]["maxHashSlotNum"]
    expected = []
    for path in sorted(directory.glob("index/*")):
        data = path.read_bytes()
        begin, _, _, _, _, count = struct.unpack_from(">qqqqii", data)
        for number in range(1, count):
            found, physical_offset, seconds, _ = struct.unpack_from(">iqii", data, 40 + 4 * slots + 20 * number)
            at = begin + (seconds * 1000 if number > 1 else 0)
            expected.append((f"index/{path.name}", found % slots, found, physical_offset, at))
    got = rows(directory, "index")
    actual = [
        (row["file"], row["slot"], row["keyHash"], row["physicalOffset"], milliseconds(row["timestamp"])) for row in got
    ]
    assert actual == expected


@pytest.mark.parametrize("name", NAMES)
def test_segments_are_the_files(name: str, tmp_path: Path) -> None:
    directory = archive.unpack(name, tmp_path)
    got = rows(directory, "segments")
    there = {
        str(path.relative_to(directory)): path.stat().st_size
        for kind in ("commitlog", "consumequeue", "index")
        for path in (directory / kind).rglob("*")
        if path.is_file() and path.stat().st_size
    }
    assert {row["file"]: row["bytes"] for row in got} == there
    for row in got:
        assert row["kind"] == row["file"].split("/")[0]
        assert 0 <= row["usedBytes"] <= row["bytes"]
        if row["kind"] != "index":
            assert row["baseOffset"] == int(row["file"].rsplit("/", 1)[1])
    if name.startswith(("damaged", "broker-killed", "clock-backwards")):
        return
    served = len(archive.truth(name))
    with open_store(str(directory)) as store:
        entries = sum(queue.stop - queue.start for queue in store.queues())
    assert sum(row["messages"] for row in got if row["kind"] == "consumequeue") >= entries >= served
    times = [m["storeTimestamp"] for m in archive.truth(name)]
    logs = [row for row in got if row["kind"] == "commitlog" and row["usedBytes"]]
    assert min(milliseconds(row["firstStoreTimestamp"]) for row in logs) <= min(times)


def test_one_log_file_in_numbers(tmp_path: Path) -> None:
    directory = archive.unpack("shop-4.9.3", tmp_path)
    log = [row for row in rows(directory, "segments") if row["kind"] == "commitlog"]
    truth = archive.truth("shop-4.9.3")
    assert sum(row["messages"] for row in log) == len(truth) > 0
    for row in log:
        inside = [m for m in truth if row["baseOffset"] <= m["physicalOffset"] < row["baseOffset"] + row["bytes"]]
        assert row["messages"] == len(inside)
        if inside:
            last = max(inside, key=lambda m: m["physicalOffset"])
            assert milliseconds(row["lastStoreTimestamp"]) == last["storeTimestamp"]


def test_a_time_that_no_calendar_holds_is_null(tmp_path: Path) -> None:
    directory = archive.unpack("mixed-4.9.3", tmp_path)
    path = sorted(directory.glob("index/*"))[0]
    with path.open("r+b") as file:
        file.write(struct.pack(">qq", 2**63 - 1, 10**15))
    found = [row for row in rows(directory, "segments") if row["file"].endswith(path.name)]
    assert [(row["firstStoreTimestamp"], row["lastStoreTimestamp"]) for row in found] == [(None, None)]


def test_a_store_time_of_no_calendar_is_null(tmp_path: Path) -> None:
    store = archive.unpack("broker-4.9.3", tmp_path)
    with open_store(str(store)) as opened:
        (before,) = opened.view("queues")
        row = next(row for row in before.to_pylist() if row["messages"] and row["minOffset"] == 0)
    entry = (store / "consumequeue" / row["topic"] / str(row["queueId"]) / f"{0:020}").read_bytes()[:8]
    with (store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(int.from_bytes(entry, "big") + STORE_TIME_POSITION)
        log.write((1 << 62).to_bytes(8, "big"))
    with open_store(str(store)) as opened:
        (after,) = opened.view("queues")
        assert list(opened.view("topics"))
    (now,) = (each for each in after.to_pylist() if (each["topic"], each["queueId"]) == (row["topic"], row["queueId"]))
    assert now == {**row, "firstStoreTimestamp": None}
