"""`repair`: every intact record is served again and `verify` is clean, in a copy and in place, even if stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError, StoreLockedError
from storage_core.files.lock import FileLock
from storage_core.formats.rocketmq.config_json import decode_config, encode_offsets
from storage_core.store import Mode, Scan, ScanRequest
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support import rocketmq_harm as harms
from tests.support.rocketmq_copies import contents, drop_unused, write_options
from tests.support.rocketmq_files import RecordPlace, overwrite, records
from tests.support.rocketmq_harm import Harm, Kind

DAMAGED = [name for name in archive.names() if name.startswith("damaged-")]
COLUMNS = ("topic", "physicalOffset", "body")


def options(name: str) -> dict[str, Any]:
    return write_options(archive.info(name)["settings"])


def repair(store: Path, name: str, target: Path | None = None) -> list[str]:
    with open_store(str(store), **options(name)) as opened:
        return list(opened.repair(None if target is None else str(target)))


def intact(store: Path) -> set[int]:
    request = ScanRequest(columns=("physicalOffset", "sysFlag", "body"), scan=Scan.LOG, mode=Mode.DROPMALFORMED)
    return {row["physicalOffset"] for row in read(store, request) if row["sysFlag"] & 0xC in (0, 8)}


def served(store: Path) -> dict[int, bytes]:
    rows = read(store, in_partitions(2, columns=COLUMNS, **AS_BROKER))
    return {row["physicalOffset"]: row["body"] for row in rows}


def check(store: Path, wanted: set[int], before: dict[int, bytes]) -> None:
    with open_store(str(store)) as opened:
        assert list(opened.verify()) == []
    found = served(store)
    assert found.keys() >= wanted
    assert {address: found[address] for address in before if address in found} == before
    assert not (store / "commitlog" / "mqstore-unfinished-write").exists()
    assert not list((store / ".mqstore").glob("repair-*"))


@pytest.mark.parametrize("in_place", [False, True], ids=["copy", "in place"])
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_fixtures(name: str, in_place: bool, tmp_path: Path) -> None:
    store = archive.unpack(name, tmp_path)
    wanted, before, files = intact(store), served(store), archive.fingerprint(store)
    target = store if in_place else tmp_path / "repaired"
    done = repair(store, name, None if in_place else target)
    assert done
    check(target, wanted, before)
    assert repair(target, name) == []
    if not in_place:
        assert archive.fingerprint(store) == files


@pytest.mark.parametrize("change", [-400, -20, -7, 300])
def test_a_queue_file_of_another_length(change: int, tmp_path: Path) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    wanted, before = intact(store), served(store)
    file = max((store / "consumequeue").glob("*/*/*"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    size = file.stat().st_size
    os.truncate(file, size + change)
    assert repair(store, "mixed-4.9.3")
    assert file.stat().st_size == size
    check(store, wanted, before)


@pytest.mark.parametrize("kind", sorted(set(harms.KINDS), key=lambda kind: kind.__name__), ids=lambda k: k.__name__)
def test_every_kind_of_harm(kind: Kind, tmp_path: Path) -> None:
    name = "mixed-4.9.3"
    for seed in range(2):
        store = archive.unpack(name, tmp_path / str(seed))
        harm = Harm()
        story = kind(store, random.Random(seed), harm)
        wanted = intact(store) - harm.touched
        before = {address: body for address, body in served(store).items() if address in wanted}
        repair(store, name)
        try:
            check(store, wanted, before)
        except AssertionError as error:
            raise AssertionError(story) from error


def test_an_intact_store_is_left_as_it_is(tmp_path: Path) -> None:
    store = archive.unpack("shop-4.9.3", tmp_path)
    before = archive.fingerprint(store)
    assert repair(store, "shop-4.9.3") == []
    after = archive.fingerprint(store)
    assert {path for path in after if after[path] != before.get(path)} <= {".", ".mqstore", ".mqstore/lock"}
    assert repair(store, "shop-4.9.3", tmp_path / "copy") == []
    for kind in ("commitlog", "consumequeue", "index"):
        assert drop_unused(contents(tmp_path / "copy", kind)) == drop_unused(contents(store, kind))


def test_a_record_that_states_another_address_stays(tmp_path: Path) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    row = next(row for row in records(store) if row.body_size > 0 and row.position > 1000)
    before = served(store)
    overwrite(row.path, row.position + 28, b"\7")
    assert any("address is corrected" in line for line in repair(store, "mixed-4.9.3"))
    check(store, set(before), before)


def holed(tmp_path: Path, name: str = "mixed-4.9.3") -> Path:
    """A store with a hole in its log, a torn end and a wrong queue entry."""
    store = archive.unpack(name, tmp_path)
    rows = list(records(store))
    first, last = rows[len(rows) // 3], rows[-1]
    overwrite(first.path, first.position, b"\1" * 60)
    overwrite(last.path, last.position + 70, bytes(last.size - 70))
    queue = sorted((store / "consumequeue").glob("*/*/*"))[0]
    overwrite(queue, 40, b"\7" * 12)
    return store


def test_what_is_cut_is_kept(tmp_path: Path) -> None:
    store = holed(tmp_path)
    before = {path.relative_to(store): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    repair(store, "mixed-4.9.3")
    (folder,) = (store / ".mqstore" / "cut").iterdir()
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        name, _, position = str(path.relative_to(folder)).partition(".from-")
        start = int(position or 0)
        assert before[Path(name)][start : start + path.stat().st_size] == path.read_bytes()
    changed = [
        path for path, data in before.items() if path.parts[0] == "commitlog" and (store / path).read_bytes() != data
    ]
    assert {str(path) for path in changed} == {
        str(path.relative_to(folder)).partition(".from-")[0] for path in kept if path.parent.name == "commitlog"
    }


def test_stopped_at_any_step_it_goes_on_when_run_again(tmp_path: Path) -> None:
    name = "mixed-4.9.3"
    origin = holed(tmp_path / "origin")
    wanted, before = intact(origin), served(origin)
    rows = {address: body for address, body in before.items() if address in wanted}
    whole = tmp_path / "whole"
    shutil.copytree(origin, whole)
    with stopped_at(None) as faults:
        repair(whole, name)
    total = faults.count
    assert total > 50
    files = {kind: drop_unused(contents(whole, kind)) for kind in ("commitlog", "consumequeue")}
    for last in sorted(random.Random(1).sample(range(total), 24)):
        store = tmp_path / str(last)
        shutil.copytree(origin, store)
        check_stop(store, name, last, wanted, rows)
        for kind, data in files.items():
            assert drop_unused(contents(store, kind)) == data, last
        shutil.rmtree(store)


def check_stop(store: Path, name: str, last: int, wanted: set[int], rows: dict[int, bytes]) -> None:
    with pytest.raises(Died), stopped_at(last, torn=last % 2 == 0):
        repair(store, name)
    repair(store, name)
    check(store, wanted, rows)


def test_a_stopped_copy_is_started_over(tmp_path: Path) -> None:
    name = "damaged-torn-tail-4.9.3"
    store = archive.unpack(name, tmp_path)
    wanted, before, target = intact(store), served(store), tmp_path / "repaired"
    with stopped_at(None) as faults:
        repair(store, name, tmp_path / "other")
    for last in sorted(random.Random(2).sample(range(faults.count), 12)):
        with pytest.raises(Died), stopped_at(last):
            repair(store, name, target)
        if target.exists() and any(target.iterdir()):
            repair(store, name, target)
            check(target, wanted, before)
            shutil.rmtree(target)


@pytest.mark.parametrize("file", ["consumerOffset.json", "lmqConsumerOffset.json"])
def test_groups_stand_before_the_same_message(file: str, tmp_path: Path) -> None:
    name = "damaged-log-hole-4.9.3"
    store = archive.unpack(name, tmp_path)
    with open_store(str(store)) as opened:
        (stop,) = [queue.stop for queue in opened.queues() if (queue.topic, queue.queue_id) == ("orders", 0)]
    rows = read(store, in_partitions(1, columns=("topic", "queueId", "queueOffset", "body"), **AS_BROKER))
    own = {row["queueOffset"]: row["body"] for row in rows if (row["topic"], row["queueId"]) == ("orders", 0)}
    later = max(offset for offset in own if offset < stop - 5)
    (store / "config").mkdir(exist_ok=True)
    table = {"orders@late": {"0": later}, "orders@done": {"0": stop}, "orders@new": {"0": 0}}
    content = {"offsetTable": table, "lmqOffsetTable": {"orders@%LMQ%g": later}}
    (store / "config" / file).write_text(json.dumps(content))
    done = repair(store, name)
    after = decode_config((store / "config" / file).read_bytes())
    found = after["offsetTable"]
    with open_store(str(store)) as opened:
        (end,) = [queue.stop for queue in opened.queues() if (queue.topic, queue.queue_id) == ("orders", 0)]
    assert found["orders@new"] == {"0": 0}
    assert found["orders@done"] == {"0": end}
    assert end < stop
    rows = read(store, in_partitions(1, columns=("topic", "queueId", "queueOffset", "body"), **AS_BROKER))
    now = {row["queueOffset"]: row["body"] for row in rows if (row["topic"], row["queueId"]) == ("orders", 0)}
    assert now[found["orders@late"]["0"]] == own[later]
    assert sum("group late" in line for line in done) == 1
    if file == "lmqConsumerOffset.json":
        assert after["lmqOffsetTable"] == {"orders@%LMQ%g": found["orders@late"]["0"]}
        assert sum(f"config/{file}: group %LMQ%g in orders/0: {later} is" in line for line in done) == 1


def restart_queue(store: Path, topic: str = "orders", lost: int = 7) -> list[RecordPlace]:
    """Turns queue 0 of a topic into one that was deleted after `lost` messages and began again; returns its records."""
    rows = read(store, in_partitions(1, columns=("topic", "queueId", "physicalOffset"), **AS_BROKER))
    own = [row for row in rows if (row["topic"], row["queueId"]) == (topic, 0)]
    at = {row.physical_offset: row for row in records(store)}
    for number, row in enumerate(own[lost:]):
        place = at[row["physicalOffset"]]
        overwrite(place.path, place.position + 20, number.to_bytes(8, "big"))
    files = sorted((store / "consumequeue" / topic / "0").iterdir())
    entries = b"".join(path.read_bytes() for path in files)[lost * 20 :] + bytes(lost * 20)
    for number, path in enumerate(files):
        size = path.stat().st_size
        path.write_bytes(entries[number * size : (number + 1) * size])
    for path in reversed(files[1:]):
        if not any(path.read_bytes()):
            path.unlink()
    return [at[row["physicalOffset"]] for row in own]


def test_a_queue_that_began_again_is_no_damage(tmp_path: Path) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    restart_queue(store)
    with open_store(str(store)) as opened:
        assert list(opened.verify()) == []


@pytest.mark.parametrize("entry", [0, 1, 5], ids=["its first entry", "its second entry", "a later one"])
def test_a_queue_that_began_again_keeps_what_it_served(entry: int, tmp_path: Path) -> None:
    """A broker's own rule would list its messages after the deleted ones, and leave out the smaller numbers."""
    store = archive.unpack("mixed-4.9.3", tmp_path)
    own = restart_queue(store)
    before = served(store)
    overwrite(sorted((store / "consumequeue" / "orders" / "0").iterdir())[0], 20 * entry, b"\7" * 12)
    repair(store, "mixed-4.9.3")
    check(store, set(before), before)
    deleted = {row.physical_offset for row in own[:7]}
    assert deleted & served(store).keys() == (set() if entry else deleted)
    assert repair(store, "mixed-4.9.3") == []


def test_a_lost_queue_that_began_again_is_listed_whole(tmp_path: Path) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    own = restart_queue(store)
    before = served(store)
    shutil.rmtree(store / "consumequeue" / "orders" / "0")
    repair(store, "mixed-4.9.3")
    check(store, before.keys() | {row.physical_offset for row in own}, before)


def test_a_queue_without_its_beginning_begins_at_0(tmp_path: Path) -> None:
    """A broker would rebuild it with fillers, and serve nothing of the log's first file from there on."""
    store = archive.unpack("mixed-4.9.3", tmp_path)
    rows = read(store, in_partitions(1, columns=("topic", "queueId", "physicalOffset"), **AS_BROKER))
    first, *rest = [row["physicalOffset"] for row in rows if (row["topic"], row["queueId"]) == ("orders", 0)]
    place = next(row for row in records(store) if row.physical_offset == first)
    overwrite(place.path, place.position + 4, b"\7" * 4)
    overwrite(sorted((store / "consumequeue" / "orders" / "0").iterdir())[0], 0, b"\7" * 12)
    done = repair(store, "mixed-4.9.3")
    assert any("orders/0: rebuilt with every message" in line for line in done)
    request = in_partitions(1, columns=("topic", "queueId", "queueOffset", "physicalOffset"), **AS_BROKER)
    own = [row for row in read(store, request) if (row["topic"], row["queueId"]) == ("orders", 0)]
    assert [row["physicalOffset"] for row in own] == rest
    assert [row["queueOffset"] for row in own] == list(range(len(rest)))


def test_a_running_broker_and_a_full_target_are_refused(tmp_path: Path) -> None:
    store = holed(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    with pytest.raises(MqStoreError, match="is not empty"):
        repair(store, "mixed-4.9.3", tmp_path / "full")
    with pytest.raises(MqStoreError, match="inside the other"):
        repair(store, "mixed-4.9.3", store / "inside")
    before = archive.fingerprint(store)
    with FileLock(str(store / "lock"), 0, "a test"):
        for target in (None, tmp_path / "copy"):
            with pytest.raises(StoreLockedError, match="a running broker"):
                repair(store, "mixed-4.9.3", target)
    after = archive.fingerprint(store)
    assert {path for path in after if after[path] != before.get(path)} <= {".", ".mqstore", ".mqstore/lock", "lock"}


@pytest.mark.parametrize("name", ["broker-4.9.3", "broker-5.3.3"])
def test_delay_levels_stand_before_the_same_message(name: str, tmp_path: Path) -> None:
    """If the repair is stopped while it sets the offsets, they are still moved only once."""
    store = archive.unpack(name, tmp_path)
    file = store / "config" / "delayOffset.json"
    before = decode_config(file.read_bytes())
    assert encode_offsets(before) == file.read_bytes()
    rows = read(store, ScanRequest(columns=("topic", "queueId", "physicalOffset"), scan=Scan.LOG))
    delayed = [row["physicalOffset"] for row in rows if (row["topic"], row["queueId"]) == ("SCHEDULE_TOPIC_XXXX", 0)]
    lost = next(row for row in records(store) if row.position == delayed[3])
    overwrite(lost.path, lost.position, b"\1" * 60)
    with stopped_at(None) as faults:
        shutil.copytree(store, tmp_path / "other")
        repair(tmp_path / "other", name)
    last = next(number for number, call in enumerate(faults.log) if "delayOffset" in call)
    for stop in (last, last + 3, last + 4):
        copy = tmp_path / str(stop)
        shutil.copytree(store, copy)
        with pytest.raises(Died), stopped_at(stop):
            repair(copy, name)
        repair(copy, name)
        offsets = decode_config((copy / "config" / "delayOffset.json").read_bytes())["offsetTable"]
        assert offsets == {**before["offsetTable"], "1": before["offsetTable"]["1"] - 1}
