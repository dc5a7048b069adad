"""DLedger logs: for every request, the rows are what a consumer received from the broker that made the store."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import copy_store, open_store
from storage_core.errors import CorruptionError, UnsupportedFormatError
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.ledger import LEDGER_HEADER
from storage_core.options.option import ROCKETMQ
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.disk.ledger import LedgerChain
from storage_core.rocketmq.recovery.ledger import ledger_end
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.store import Predicate, Scan, ScanRequest
from storage_core.transfer.store_files import files_of
from tests.golden import archive
from tests.reference.consumed import got, shown_fields
from tests.reference.served import Row, by_place, partition_rows, place
from tests.support.copied_stores import contents
from tests.support.golden_stores import name_and_directory
from tests.support.ledger_store import HARMS, headers, log_files
from tests.support.memory_bucket import Bucket, served
from tests.support.remote_answers import Twins

ENGINE = "rocketmq/ledger"
TOPICS = ("events", "orders")
KILLED, STOPPED = "killed-5.3.3", "stopped-4.9.3"
name, directory = name_and_directory(ENGINE)


def rows_of(directory: Path, partitions: int = 1, **request: Any) -> list[Row]:
    options = {name: request.pop(name) for name in ("recovery", "commitLogPath") if name in request}
    return by_place(directory, partitions, options, **{"topics": TOPICS} | request)


def logged(directory: Path) -> list[Row]:
    return rows_of(directory, scan=Scan.LOG)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_rows_are_what_a_consumer_got(name: str, directory: Path) -> None:
    before = archive.fingerprint(directory)
    truth = [got(message) for message in archive.truth(name, ENGINE)]
    for partitions in (1, 5):
        assert [shown_fields(row) for row in rows_of(directory, partitions)] == truth
    assert archive.fingerprint(directory) == before


REQUESTS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"keys": ("key-3",)}, lambda row: "key-3" in row["keys"]),
    ({"tags": ("red",)}, lambda row: row["tags"] == "red"),
    ({"topics": None, "assign": (("orders", 1),)}, lambda row: place(row)[:2] == ("orders", 1)),
    ({"predicates": (Predicate("queueOffset", ">=", 30),)}, lambda row: row["queueOffset"] >= 30),
    ({"predicates": (Predicate("physicalOffset", ">", 60_000),)}, lambda row: row["physicalOffset"] > 60_000),
    ({"max_records_per_partition": 7}, lambda row: True),
    ({"columns": ("topic", "queueId", "queueOffset", "physicalOffset", "size")}, lambda row: True),
]


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: "-".join(case[0]))
def test_a_request_leaves_what_it_asks_for(directory: Path, case: tuple[dict[str, Any], Callable[[Row], bool]]) -> None:
    request, is_expected = case
    for scan in Scan:
        whole = [row for row in rows_of(directory, scan=scan) if is_expected(row)]
        for partitions in (1, 5):
            rows = rows_of(directory, partitions, scan=scan, **request)
            assert rows
            assert rows == [{column: row[column] for column in rows[0]} for row in whole]


def test_times(directory: Path) -> None:
    rows = rows_of(directory)
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    assert rows_of(directory, start_ms=middle) == [row for row in rows if row["storeTimestamp"] >= middle]
    assert rows_of(directory, stop_ms=middle) == [row for row in rows if row["storeTimestamp"] < middle]


@pytest.mark.parametrize("with_index", [True, False])
def test_lookups(directory: Path, with_index: bool) -> None:
    rows = rows_of(directory)
    if not with_index:
        shutil.rmtree(directory / "index")
    for row in (rows[3], rows[-1]):
        for wanted in (row["msgId"], row["offsetMsgId"]):
            assert rows_of(directory, message_ids=(wanted,)) == [row]
        with open_store(str(directory)) as store:
            found = pa.Table.from_batches(store.find(row["keys"][0]))["physicalOffset"].to_pylist()
        expected = [each["physicalOffset"] for each in rows if row["keys"][0] in each["keys"]]
        assert sorted(found) == sorted(expected)


def test_what_a_start_after_a_crash_takes_out_of_the_queues(tmp_path: Path) -> None:
    directory = archive.unpack(KILLED, tmp_path, ENGINE)
    rows, every = rows_of(directory), logged(directory)
    served_addresses = {row["physicalOffset"] for row in rows}
    gone = [row["physicalOffset"] for row in every if row["physicalOffset"] not in served_addresses]
    assert gone
    assert len(rows_of(directory, recovery="4.9")) == len(every)
    with open_store(str(directory)) as store:
        (line,) = store.snapshot().warnings()
        (finding,) = store.verify()
    assert f"between physical offsets {gone[0]} and " in line
    assert "scan=log" in line
    assert (finding.kind, finding.repairable) == ("unlisted messages", False)
    (directory / "abort").unlink()
    assert rows_of(directory) == every
    with open_store(str(directory)) as store:
        assert (list(store.snapshot().warnings()), list(store.verify())) == ([], [])


def test_a_damaged_header_ends_the_log_and_a_damaged_record_does_not(tmp_path: Path) -> None:
    directory = archive.unpack(STOPPED, tmp_path, ENGINE)
    rows = rows_of(directory)
    file = log_files(directory)[-1]
    starts = headers(file)
    number = len(starts) // 2
    at = int(file.name) + starts[number]
    shutil.copytree(directory, tmp_path / "other")
    flip(file, starts[number] + LEDGER_HEADER.field("number").offset + 7)
    assert rows_of(directory) == [row for row in rows if row["physicalOffset"] < at]
    assert len(logged(directory)) == len(rows)
    with open_store(str(directory)) as store:
        assert "records after the end" in {finding.kind for finding in store.verify()}
        assert store.state().cut_offset == at
        assert (store.state().repairable, store.state().replicated) == (False, True)
    other = log_files(tmp_path / "other")[-1]
    flip(other, starts[number] + LEDGER_HEADER.size + 100)
    assert len(rows_of(tmp_path / "other")) >= len(rows) - 1


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("seed", [1, 2])
def test_harm_is_reported_and_every_way_of_reading_agrees(
    directory: Path, harm: Callable[[Path, random.Random], None], seed: int
) -> None:
    harm(directory, random.Random(seed))
    rows = rows_of(directory)
    assert rows_of(directory, 5) == rows
    addresses = {row["physicalOffset"] for row in logged(directory)}
    assert {row["physicalOffset"] for row in rows} <= addresses
    with open_store(str(directory)) as store:
        assert not any(finding.repairable for finding in store.verify())
        assert (store.state().repairable, store.state().replicated) == (False, True)


def test_a_copy_has_its_ledger_among_what_goes_first(directory: Path) -> None:
    files, _ = files_of(str(directory), ROCKETMQ, ())
    first = {file.name for file in files if file.is_log}
    below = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert first == {name for name in below if name.startswith(("commitlog/", "dledger-n0/"))}
    assert any(name.startswith("dledger-n0/data/") for name in first)


def test_nothing_changes_a_ledger(directory: Path, tmp_path: Path) -> None:
    (directory / "abort").unlink(missing_ok=True)
    before = archive.fingerprint(directory)
    with open_store(str(directory)) as store:
        for change in (
            lambda: store.append(pa.table({"topic": ["orders"], "body": [b"1"]})), store.repair,
            lambda: store.repair(str(tmp_path / "copy")), lambda: store.repair(dry_run=True),
        ):  # fmt: skip
            with pytest.raises(UnsupportedFormatError, match="a DLedger log, which mqstore reads and does not change"):
                change()
    after = archive.fingerprint(directory)
    assert [name for name in before if before[name][1:] != after[name][1:]] == []
    assert not (tmp_path / "copy").exists()


def test_logs_of_several_nodes(directory: Path) -> None:
    rows = rows_of(directory)
    (directory / "dledger-n0.tar.gz").touch()
    assert rows_of(directory) == rows
    (directory / "dledger-n1" / "data").mkdir(parents=True)
    with pytest.raises(UnsupportedFormatError, match="dledger-n0 and dledger-n1 are DLedger logs of different nodes"):
        rows_of(directory)


def test_a_ledger_in_another_folder(tmp_path: Path) -> None:
    directory = archive.unpack(KILLED, tmp_path, ENGINE)
    rows = rows_of(directory)
    shutil.move(directory / "dledger-n0" / "data", tmp_path / "elsewhere")
    assert [shown_fields(row) for row in rows_of(directory, commitLogPath=str(tmp_path / "elsewhere"))] == [
        shown_fields(row) for row in rows
    ]


@pytest.mark.parametrize("case", [(KILLED, False), (KILLED, True), (STOPPED, True)], ids=str)
def test_a_ledger_over_several_folders(tmp_path: Path, case: tuple[str, bool]) -> None:
    """5.x takes a comma list as storePathDLedgerCommitLog."""
    name, after_plain_log = case
    directory = archive.unpack(name, tmp_path, ENGINE)
    rows = rows_of(directory)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    for number, file in enumerate(log_files(directory)):
        shutil.move(file, folders[number % 2])
    names = ",".join(map(str, [directory / "commitlog", *folders] if after_plain_log else folders))
    found = rows_of(directory, commitLogPath=names)
    assert found
    assert [shown_fields(row) for row in found] == [shown_fields(row) for row in rows]
    last = max(int(file.name) for folder in folders for file in folder.iterdir())
    size = next(folders[0].iterdir()).stat().st_size
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / f"{last + size:020d}").write_bytes(bytes(size))
    assert rows_of(directory, commitLogPath=f"{tmp_path / 'new'},{names}") == found


def test_a_damaged_header_in_an_earlier_file_of_a_killed_broker(tmp_path: Path) -> None:
    """DLedger removes the files after it, so the scan of a 5.x start, which looks at no header, ends with its file,
    and cuts the queues there: 48 bytes a record too early.
    """
    directory = archive.unpack(KILLED, tmp_path, ENGINE)
    before, file = logged(directory), log_files(directory)[-2]
    starts = headers(file)
    at, scanned_to = (int(file.name) + starts[number] for number in (len(starts) // 2, -1))
    cut = scanned_to - LEDGER_HEADER.size * (len(starts) - 1)
    flip(file, at - int(file.name) + LEDGER_HEADER.field("number").offset + 7)
    assert rows_of(directory) == [row for row in before if row["physicalOffset"] < at]
    with open_store(str(directory)) as store:
        stops = {(info.topic, info.queue_id): info.stop for info in store.queues() if info.topic in TOPICS}
    assert stops == {place(row)[:2]: place(row)[2] + 1 for row in before if row["physicalOffset"] < cut}


def test_a_broker_that_has_left_dledger(tmp_path: Path) -> None:
    """Its log without headers continues where the ledger was, in the default folder or in another one."""
    directory = archive.unpack("shop-4.9.3", tmp_path)
    rows = rows_of(directory, topics=None)
    ledger = archive.unpack(KILLED, tmp_path / "other", ENGINE) / "dledger-n0"
    shutil.move(ledger, directory / "dledger-n0")
    assert rows_of(directory, topics=None) == rows
    elsewhere = tmp_path / "elsewhere"
    shutil.move(directory / "commitlog", elsewhere)
    assert rows_of(directory, topics=None, commitLogPath=str(elsewhere)) == rows


def test_the_view_of_files(directory: Path) -> None:
    rows = {row["physicalOffset"]: row for row in logged(directory)}
    with open_store(str(directory)) as store:
        found = pa.Table.from_batches(store.view("segments")).to_pylist()
    for file in (each for each in found if each["kind"] == "commitlog"):
        base = file["baseOffset"]
        own = [row for at, row in sorted(rows.items()) if base <= at < base + file["bytes"]]
        assert (directory / file["file"]).stat().st_size == file["bytes"]
        assert round(file["firstStoreTimestamp"].timestamp() * 1000) == own[0]["storeTimestamp"]
        assert file["messages"] <= len(own)


def test_a_missing_file_has_the_name_that_it_would_have(tmp_path: Path) -> None:
    directory = archive.unpack(STOPPED, tmp_path, ENGINE)
    with open_store(str(directory)) as store:
        log = store.snapshot().served.listing.log
    assert log.name_of(1).endswith("/commitlog/" + "0" * 20)
    assert log.name_of(1 << 20).endswith(f"/dledger-n0/data/{1 << 20:020d}")


def test_damage_is_reported(directory: Path) -> None:
    row = next(row for row in rows_of(directory) if row["physicalOffset"] > 70_000)
    path = next(file for file in reversed(log_files(directory)) if int(file.name) < row["physicalOffset"])
    flip(path, row["physicalOffset"] - int(path.name) + 90)
    with pytest.raises(CorruptionError, match=f"{path}.*") as caught, open_store(str(directory)) as store:
        list(store.snapshot().read(ScanRequest(topics=TOPICS)))
    assert "mode=DROPMALFORMED" in str(caught.value)


def test_a_walk_from_a_known_end_knows_what_is_committed(directory: Path) -> None:
    listing = list_store(str(directory))
    assert isinstance(listing.log, LedgerChain)
    assert listing.ledger is not None
    with OpenFiles() as files:
        whole = ledger_end(listing.root, listing.log, listing.ledger.committed, files)
        again = ledger_end(listing.root, listing.log, listing.ledger.committed, files, whole.end_offset)
    assert whole.committed_offset > 0
    assert again == whole


@pytest.mark.parametrize("harm", [*HARMS, None], ids=lambda harm: getattr(harm, "__name__", "none"))
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_recovery_from_a_known_end_finds_the_same(
    directory: Path, harm: Callable[[Path, random.Random], None] | None, seed: int
) -> None:
    if harm is not None:
        harm(directory, random.Random(seed))
    listing = list_store(str(directory))
    for rules in (Rules.V4, Rules.V5):
        found = recover(listing, rules)
        assert recover(listing, rules, found) == found


def test_a_header_with_a_wrong_number_is_still_wrong_when_it_is_read_again(tmp_path: Path) -> None:
    directory = archive.unpack(KILLED, tmp_path, ENGINE)
    file = log_files(directory)[-1]
    flip(file, headers(file)[1] + LEDGER_HEADER.field("number").offset + 7)
    rows = rows_of(directory)
    for _ in range(3):
        with open_store(str(directory)) as store:
            assert store.snapshot().served.verdict.log_end == int(file.name) + headers(file)[1]
        assert rows_of(directory) == rows


def test_a_stream_gets_the_same(directory: Path) -> None:
    with open_store(str(directory)) as store:
        tail = store.follow()
        snapshot = tail.look()
        plan = snapshot.plan_ranges(ScanRequest(), snapshot.positions)
        tail.close()
    rows = [row for piece in plan for row in partition_rows(piece) if row["topic"] in TOPICS]
    assert sorted(rows, key=place) == rows_of(directory)


def test_from_a_bucket(directory: Path) -> None:
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        twins = Twins(directory, "memory://backups/nightly/store")
        for scan in Scan:
            twins.assert_same(
                lambda store, scan=scan: pa.Table.from_batches(
                    store.snapshot().read(ScanRequest(topics=TOPICS, scan=scan))
                )
            )
        twins.assert_same(lambda store: pa.Table.from_batches(store.view("queues")))


def test_a_copy_to_a_bucket_and_back(directory: Path, tmp_path: Path) -> None:
    (directory / "abort").unlink(missing_ok=True)
    with served(Bucket()):
        copy_store(str(directory), "memory://backups/copied/store")
        copy_store("memory://backups/copied/store", str(tmp_path / "back" / "store"))
    assert contents(tmp_path / "back" / "store") == contents(directory)
    assert rows_of(tmp_path / "back" / "store") == rows_of(directory)
