"""`preserve=true`: rows read from a store's log and written into a new one give the same store, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError, RowError
from storage_core.rocketmq.write import commit_plan
from storage_core.store import Scan, ScanRequest
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.rocketmq.light_store import QUEUE_FILE_SIZE, make_light_store
from tests.support.rocketmq_copies import contents, copy_log, drop_unused, read_log, write_options
from tests.support.rocketmq_visits import served, visit
from tests.support.rocketmq_writes import GEOMETRY, commit_point, rows

INTACT = [name for name in archive.names() if not name.startswith(("damaged-", "broker-killed", "expired"))]
LOG_ONLY = [name for name in archive.names() if name.startswith(("broker-killed", "expired"))]
DEFAULTS = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}


@pytest.mark.parametrize("name", INTACT)
def test_intact_stores_are_copied_byte_for_byte(name: str, tmp_path: Path) -> None:
    source = archive.unpack(name, tmp_path / "source")
    copy_log(source, tmp_path / "copy", write_options(archive.info(name)["settings"]))
    for kind in ("commitlog", "consumequeue", "index"):
        ours, theirs = contents(tmp_path / "copy", kind), drop_unused(contents(source, kind))
        assert [n for n, _ in ours] == [n for n, _ in theirs], kind
        assert ours or kind == "index", kind
        for (name_of, mine), (_, wanted) in zip(ours, theirs, strict=True):
            assert mine == wanted, f"{kind} {name_of}"


@pytest.mark.parametrize("name", LOG_ONLY)
@pytest.mark.parametrize("partitions", [1, 5])
def test_the_log_of_other_stores_is_copied_byte_for_byte(name: str, partitions: int, tmp_path: Path) -> None:
    source = archive.unpack(name, tmp_path / "source")
    copy_log(source, tmp_path / "copy", write_options(archive.info(name)["settings"]), partitions)
    assert contents(tmp_path / "copy", "commitlog") == drop_unused(contents(source, "commitlog"))


LIGHT_OPTIONS = {**GEOMETRY, "commitLogFileSize": 8192, "consumeQueueFileEntries": QUEUE_FILE_SIZE // 20}


@pytest.mark.parametrize("chunk", [1 << 16, 7])
@pytest.mark.parametrize("partitions", [1, 4])
def test_queues_that_records_name_are_copied(
    partitions: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_light_store(tmp_path / "source")
    monkeypatch.setattr(commit_plan, "CHUNK_COUNT", chunk)
    copy_log(source, tmp_path / "copy", LIGHT_OPTIONS, partitions)
    assert contents(tmp_path / "copy", "consumequeue") == contents(source, "consumequeue")
    assert sorted(json.loads((tmp_path / "copy" / "config" / "topics.json").read_text())["topicConfigTable"]) == ["T"]
    with open_store(str(tmp_path / "copy")) as store:
        assert list(store.verify()) == []


def test_a_stopped_copy_is_finished_with_the_queues_that_records_name(tmp_path: Path) -> None:
    source = make_light_store(tmp_path / "source")
    with stopped_at(None) as clock:
        copy_log(source, tmp_path / "whole" / "store", LIGHT_OPTIONS)
    wanted = contents(tmp_path / "whole" / "store", "consumequeue")
    assert wanted == contents(source, "consumequeue")
    for last in range(commit_point(clock.log) + 1, clock.count, 3):
        store = tmp_path / str(last) / "store"
        with pytest.raises(Died), stopped_at(last):
            copy_log(source, store, LIGHT_OPTIONS)
        with open_store(str(store), **LIGHT_OPTIONS) as opened:
            list(opened.repair())
        assert contents(store, "consumequeue") == wanted


@pytest.mark.parametrize("queues_in_place", [False, True])
def test_addresses_that_a_broker_has_taken_are_refused(queues_in_place: bool, tmp_path: Path) -> None:
    """The guard was removed by hand, and a broker ran on the half-written store.

    Nothing is overwritten, and every further write states why it is rejected and how to resolve that.
    """
    source = archive.unpack("delay-4.9.3", tmp_path / "source")
    options = write_options(archive.info("delay-4.9.3")["settings"])
    with stopped_at(None) as clock:
        copy_log(source, tmp_path / "whole" / "store", options)
    placed = [at for at, call in enumerate(clock.log) if call.startswith("rename ") and "/new/" in call]
    store = tmp_path / "stopped" / "store"
    with pytest.raises(Died), stopped_at(placed[len(placed) // 2] if queues_in_place else commit_point(clock.log) + 3):
        copy_log(source, store, options)
    visit(store, 40, **options)
    before = served(store)
    for write in (lambda: copy_log(source, store, {}), lambda: append(store), lambda: append(store)):
        with pytest.raises(MqStoreError, match=r"can not be finished.*remove \S+intent\.json") as caught:
            write()
        assert "\n" not in str(caught.value)
        assert served(store) == before
    (store / ".mqstore" / "intent.json").unlink()
    assert append(store) == 5
    after = served(store)
    assert len(after) == len(before) + 5
    assert {at: after[at] for at in before} == before


def append(store: Path) -> int:
    with open_store(str(store)) as opened:
        return opened.append(rows(5, 900, ("orders",)))


def test_preserved_messages_that_no_queue_accepts_are_counted(tmp_path: Path) -> None:
    """Records of another store, moved behind the end of this one: their queue offsets are taken already."""
    for name, count in (("source", 30), ("target", 20)):
        with open_store(str(tmp_path / name), "rocketmq", **GEOMETRY) as store:
            store.append({"topic": ["T"] * count, "body": ["b"] * count, "queueId": pa.array([0] * count, pa.int32())})
    with open_store(str(tmp_path / "source")) as store:
        request = ScanRequest(scan=Scan.LOG, decompress=False)
        table = pa.Table.from_batches(list(store.snapshot().read(request)))
    moved = pc.add(table["physicalOffset"], 1 << 20)
    table = table.set_column(table.schema.get_field_index("physicalOffset"), "physicalOffset", moved)
    with open_store(str(tmp_path / "target"), preserve="true") as store:
        job = store.begin_job(table.schema.names)
        job.write(iter(table.to_batches()))
    (warning,) = job.warnings
    assert warning.startswith(
        f"{tmp_path}/target: 20 of the preserved messages are in no queue, because their queueOff"
    )
    assert len(served(tmp_path / "target")) == 30


def test_a_host_that_was_replaced_leaves_a_whole_record(tmp_path: Path) -> None:
    """The bits of SYSFLAG that state the length of the hosts follow from the hosts that are written."""
    count = 9
    hosts = pa.array(["[2001:db8::1]:7"] * count)
    with open_store(str(tmp_path / "source"), "rocketmq") as store:
        store.append(rows(count).append_column("bornHost", hosts), **GEOMETRY)
    (table,) = read_log(tmp_path / "source")
    replaced = pa.array([*table["bornHost"].to_pylist()[:-1], "0.0.0.0:0"])
    with open_store(str(tmp_path / "target"), "rocketmq") as store:
        rewritten = table.set_column(table.column_names.index("bornHost"), "bornHost", replaced)
        assert store.append(rewritten, preserve="true", **GEOMETRY) == count
    with open_store(str(tmp_path / "target")) as store:
        assert list(store.verify()) == []
    (after,) = read_log(tmp_path / "target")
    assert after["bornHost"].to_pylist() == replaced.to_pylist()
    assert after["sysFlag"].to_pylist() == [0x10] * (count - 1) + [0]


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("queueId", -1, "it must be 0 or more"),
        ("queueOffset", -1, "it must be 0 or more"),
        ("queueOffset", 1 << 60, "it must be at most 288230376151711743, the last with a place in files"),
        ("physicalOffset", -4096, "it must be 0 or more"),
    ],
)
def test_a_place_that_no_file_has_is_refused(column: str, value: int, rule: str, tmp_path: Path) -> None:
    """A negative queue offset once made a queue file that keeps a broker from loading the whole store."""
    with open_store(str(tmp_path / "source"), "rocketmq") as store:
        store.append(rows(9), **GEOMETRY)
    (table,) = read_log(tmp_path / "source")
    field = table.schema.field(column)
    changed = pa.array([*table[column].to_pylist()[:4], value, *table[column].to_pylist()[5:]], field.type)
    table = table.set_column(table.column_names.index(column), field, changed)
    with open_store(str(tmp_path / "target"), "rocketmq") as store, pytest.raises(RowError) as caught:
        store.append(table, preserve="true", **GEOMETRY)
    assert str(caught.value) == f"RowError: row 4 of its task: column '{column}' is {value}: {rule}"
    assert not (tmp_path / "target").exists()
