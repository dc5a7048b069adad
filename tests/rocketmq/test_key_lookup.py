"""The index alone: chains of many keys at once, pages read, geometry derived from content, damage detected."""

from __future__ import annotations

import os
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from storage_core import open_store
from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.index import key_lookup
from storage_core.rocketmq.index.index_files import Index, open_index
from storage_core.rocketmq.index.key_lookup import hashes_to_find, look_up
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.store import ScanRequest
from tests.reference.rocketmq_index import Index as ModelFile
from tests.reference.rocketmq_index import dispatch
from tests.reference.rocketmq_model import Message, ModelStore, properties_bytes

SLOTS, ENTRIES, FIRST_MS = 20, 81, 1_700_000_000_000


def made(directory: Path, count: int, slots: int = SLOTS, entries: int = ENTRIES) -> dict[str, list[int]]:
    """Makes a store of messages with two keys each, in index files of 80 entries; returns the addresses of each key."""
    store, index, physical_offsets = ModelStore(65536, 20_000), list[ModelFile](), dict[str, list[int]]()
    r = random.Random(count)
    for number in range(count):
        keys = [f"order-{number}", r.choice(("AaAa", "BBBB", "often"))]
        properties = properties_bytes([("KEYS", " ".join(keys))], True)
        physical_offset, _ = store.put(Message("T", number % 3, b"x", properties, FIRST_MS + number, FIRST_MS))
        dispatch(index, slots, entries, "T", physical_offset, FIRST_MS + number, 0, {"KEYS": " ".join(keys)})
        for key in keys:
            physical_offsets.setdefault(key, []).append(physical_offset)
    store.save(directory)
    (directory / "index").mkdir()
    for number, file in enumerate(index):
        (directory / "index" / str(20231114221320000 + number)).write_bytes(file.content())
    return physical_offsets


def opened(directory: Path, files: OpenFiles) -> tuple[Index, RocketSnapshot]:
    with open_store(str(directory)) as store:
        snapshot = store.snapshot()
    assert isinstance(snapshot, RocketSnapshot)
    log, verdict = snapshot.served.listing.log, snapshot.served.verdict
    return open_index(str(directory), log, verdict.log_start, verdict.log_end, files), snapshot


def lookup(directory: Path, keys: list[str]) -> tuple[list[int], list[tuple[int, int]], int]:
    with OpenFiles() as files:
        index, snapshot = opened(directory, files)
        verdict = snapshot.served.verdict
        hashes = hashes_to_find(["T"], keys)
        log = snapshot.served.listing.log
        records = RecordReader(log, files, verdict.log_end)
        found = look_up(index, hashes, log, files, verdict.log_start, verdict.log_end, records)
    return found.physical_offsets.tolist(), found.spans, found.pages


def test_one_key_over_forty_files_touches_chains_not_files(tmp_path: Path) -> None:
    """Two pages per file and a few more: what a chain needs, however large the files are."""
    physical_offsets = made(tmp_path / "store", 1600, slots=4000, entries=81)
    assert len(list((tmp_path / "store" / "index").iterdir())) == 40
    found, spans, pages = lookup(tmp_path / "store", ["order-77"])
    assert found == physical_offsets["order-77"]
    assert spans == []
    assert pages <= 40 * 2 + 4


def test_the_number_of_pages_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path / "store", 1600, slots=4000, entries=81)
    pages = lookup(tmp_path / "store", ["order-77"])[2]
    with caplog.at_level("INFO", "mqstore"), open_store(str(tmp_path / "store")) as store:
        assert sum(batch.num_rows for batch in store.find(key="order-77")) == 1
    message = f"1 keys in 1 topics: {pages} pages of 40 index files were read; 1 candidates, 0 bytes left to scan"
    assert message in caplog.text


def test_many_keys_at_once(tmp_path: Path) -> None:
    physical_offsets = made(tmp_path / "store", 700)
    wanted = [f"order-{number}" for number in range(0, 700, 2)] + ["BBBB", "none"]
    found, spans, _ = lookup(tmp_path / "store", wanted)
    assert spans == []
    right = {physical_offset for key in wanted for physical_offset in physical_offsets.get(key, ())}
    assert right <= set(found)
    # "AaAa" has the same hash as "BBBB": candidates, which the messages themselves rule out.
    assert set(found) - right <= set(physical_offsets["AaAa"])


def test_more_index_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is set in the system itself, so that opening one file too many is a system error."""
    made(tmp_path / "store", 1600)
    wanted = [f"order-{number}" for number in range(0, 1600, 3)] + ["often"]
    expected = lookup(tmp_path / "store", wanted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(system, "open_file_limit", lambda: 4 * 7)
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 4 * 7, hard))
    try:
        found = lookup(tmp_path / "store", wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == expected


@pytest.mark.parametrize(("slots", "entries"), [(1, 20), (5, 17), (6, 16), (50, 100), (333, 41), (1000, 2)])
def test_geometry_is_found_from_content(tmp_path: Path, slots: int, entries: int) -> None:
    made(tmp_path / "store", 60, slots, entries)
    with OpenFiles() as files:
        index, _ = opened(tmp_path / "store", files)
        assert index.files
        assert {file.geometry for file in index.files} == {Geometry(slots, entries)}


def test_holes_between_files_are_left_to_scan(tmp_path: Path) -> None:
    physical_offsets = made(tmp_path / "store", 400)
    paths = sorted((tmp_path / "store" / "index").iterdir())
    lost = struct.unpack_from(">qq", paths[3].read_bytes(), 16)
    paths[3].unlink()
    _, spans, _ = lookup(tmp_path / "store", ["order-5"])
    ((start, stop),) = spans
    assert lost[0] <= start <= stop <= lost[1] + 200
    assert [
        physical_offset
        for key in physical_offsets
        for physical_offset in physical_offsets[key]
        if lost[0] < physical_offset < lost[1] and not start <= physical_offset < stop
    ] == []


@pytest.mark.parametrize("at", ["hash", "place", "seconds", "previous", "slot"])
def test_a_chain_that_makes_no_sense_is_not_believed(tmp_path: Path, at: str) -> None:
    physical_offsets = made(tmp_path / "store", 300)
    path = sorted((tmp_path / "store" / "index").iterdir())[2]
    data = bytearray(path.read_bytes())
    begin, end = struct.unpack_from(">qq", data, 16)
    key = next(key for key in physical_offsets if key.startswith("order") and begin < physical_offsets[key][0] < end)
    slot = int(hashes_to_find(["T"], [key])[0]) % SLOTS
    (number,) = struct.unpack_from(">i", data, 40 + 4 * slot)
    entry = 40 + 4 * SLOTS + 20 * number
    if at == "slot":
        struct.pack_into(">i", data, 40 + 4 * slot, ENTRIES + 5)
    elif at == "hash":
        data[entry + 3] ^= 1
    elif at == "place":
        struct.pack_into(">q", data, entry + 4, end + 1)
    elif at == "seconds":
        struct.pack_into(">i", data, entry + 12, -1)
    else:
        struct.pack_into(">i", data, entry + 16, number)
    path.write_bytes(data)
    found, spans, _ = lookup(tmp_path / "store", [key])
    assert any(start <= physical_offsets[key][0] < stop for start, stop in spans)
    assert physical_offsets[key][0] not in found
    with open_store(str(tmp_path / "store")) as store:
        rows = [row for batch in store.find(key=key) for row in batch.to_pylist()]
    assert [row["physicalOffset"] for row in rows] == physical_offsets[key]


@pytest.mark.parametrize("seed", range(12))
def test_chains_followed_one_by_one_are_those_walked_together(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "store", 300)
    r = random.Random(seed)
    for path in (tmp_path / "store" / "index").iterdir():
        data = bytearray(path.read_bytes())
        for _ in range(r.choice((0, 1, 3))):
            data[r.randrange(40, len(data))] ^= 1 << r.randrange(8)
        path.write_bytes(data)
    keys, answers = ["AaAa", "often", *(f"order-{r.randrange(320)}" for _ in range(6))], []
    for few in (0, 1 << 30):
        monkeypatch.setattr(key_lookup, "FEW_CHAINS", few)
        answers.append([lookup(tmp_path / "store", [key])[:2] for key in keys] + [lookup(tmp_path / "store", keys)[:2]])
    assert answers[0] == answers[1]


def test_thousands_of_keys_in_one_plan(tmp_path: Path) -> None:
    made(tmp_path / "store", 1500)
    keys = tuple(f"order-{number}" for number in range(3000))

    with open_store(str(tmp_path / "store")) as store:
        parts = store.snapshot().plan(ScanRequest(keys=keys, columns=("physicalOffset",)))
        rows = [
            physical_offset
            for part in parts
            for batch in part.read()
            for physical_offset in batch.column(0).to_pylist()
        ]
    assert len(rows) == len(np.unique(rows)) == 1500


def test_an_address_inside_a_record_is_no_message(tmp_path: Path) -> None:
    """Any id of another broker may be one. The index, which has no such id, reads no record at all."""
    with open_store(str(tmp_path / "store"), "rocketmq") as store:
        store.append({"topic": ["orders"] * 3, "body": ["a", "b", "c"], "key": ["k1", "k2", "k3"]})
        addresses = [
            row["physicalOffset"] for batch in store.snapshot().read(ScanRequest()) for row in batch.to_pylist()
        ]
        for address in (1, 12, addresses[1] + 1, addresses[2] + 40, 1 << 40):
            found = store.snapshot().read(ScanRequest(message_ids=(f"7F00000100002A9F{address:016X}",)))
            assert sum(batch.num_rows for batch in found) == 0
