"""`repair` of a vhost, stopped anywhere: every whole message that its index lists is served, and `verify` is clean."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from storage_core.errors import MqStoreError, StoreLockedError
from storage_core.rabbitmq import open_store
from storage_core.store import Mode
from tests.faults import Died, stopped_at
from tests.golden.archive import fingerprint
from tests.lost_writes import left_behind, recorded, survivors
from tests.rabbitmq import golden
from tests.support import version_2_harm
from tests.support.rabbitmq_damage import edit, queue_file
from tests.support.rabbitmq_harm import COUNT, HARMS, LARGE, LATER, SMALL, Harm, body, make, there
from tests.support.sampling import sample

pytestmark = pytest.mark.sampled

ALL = [(queue, body(queue, number)) for queue in (SMALL, LARGE) for number in range(COUNT + LATER)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A store that was stopped cleanly, and one that was killed."""
    folder = tmp_path_factory.mktemp("made")
    return {clean: make(folder / str(clean), "v", clean) for clean in (True, False)}


def harmed(stores: dict[bool, Path], harm: Harm, target: Path) -> Path:
    shutil.copytree(stores[harm.clean], target)
    harm.apply(target)
    return target


def served(store: Path, mode: Mode = Mode.FAILFAST) -> list[tuple[str, bytes]]:
    found = golden.table(store, columns=("queue", "body"), topics=there(store), mode=mode).to_pylist()
    return [(row["queue"], row["body"]) for row in found if row["body"] is not None]


def repair(store: Path, target: Path | None = None) -> list[str]:
    with open_store(str(store)) as opened:
        return list(opened.repair(None if target is None else str(target)))


def check(store: Path, before: list[tuple[str, bytes]], harm: Harm) -> None:
    with open_store(str(store)) as opened:
        assert list(opened.verify()) == []
    found = served(store)
    assert set(found) >= set(before)
    assert len(found) == len(set(found))
    assert len(ALL) - len(found) <= harm.lost
    order = {message: number for number, message in enumerate(ALL)}
    for queue in (SMALL, LARGE):
        numbers = [order[message] for message in found if message[0] == queue]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("name", HARMS)
def test_every_kind_of_harm(stores: dict[bool, Path], name: str, tmp_path: Path) -> None:
    harm = HARMS[name]
    store = harmed(stores, harm, tmp_path / "store")
    with open_store(str(store)) as opened:
        found = list(opened.verify())
        plan = opened.repair(dry_run=True)
    assert len(plan) == len(found)
    assert ", ".join(sorted({finding.kind for finding in found})) == harm.kinds
    assert all(finding.effect and finding.repairable for finding in found)
    before, files = served(store, Mode.DROPMALFORMED), fingerprint(store)
    target = tmp_path / "repaired"
    done = repair(store, target)
    assert bool(done) == bool(harm.kinds)
    check(target, before, harm)
    assert fingerprint(store) == files
    assert repair(target) == []
    assert repair(store) == done
    check(store, before, harm)


def test_an_intact_store_is_left_as_it_is(stores: dict[bool, Path], tmp_path: Path) -> None:
    for clean, origin in stores.items():
        store = tmp_path / str(clean)
        shutil.copytree(origin, store)
        before = fingerprint(store)
        assert repair(store) == []
        after = fingerprint(store)
        assert {path for path in after if after[path] != before.get(path)} <= {".", ".mqstore", ".mqstore/lock"}


MANY = ("killed: a hole in a segment", "killed: a record of a wrong size", "killed: a journal's torn end")
MANY_CLEAN = ("clean: a hole in a message file", "clean: an embedded message that does not decode")


def worst(stores: dict[bool, Path], target: Path, clean: bool) -> tuple[Path, Harm]:
    """A store with several kinds of harm at once."""
    names = MANY_CLEAN if clean else MANY
    shutil.copytree(stores[clean], target)
    for name in names:
        HARMS[name].apply(target)
    return target, Harm(clean, "", lambda _: None, sum(HARMS[name].lost for name in names))


def test_what_is_cut_is_kept(stores: dict[bool, Path], tmp_path: Path) -> None:
    for clean in (True, False):
        store, _ = worst(stores, tmp_path / str(clean), clean)
        before = {path.relative_to(store): path.read_bytes() for path in store.rglob("*") if path.is_file()}
        repair(store)
        (folder,) = (store / ".mqstore" / "cut").iterdir()
        kept: dict[Path, list[tuple[int, bytes]]] = {}
        for path in (path for path in folder.rglob("*") if path.is_file()):
            name, _, position = str(path.relative_to(folder)).partition(".from-")
            kept.setdefault(Path(name), []).append((int(position.partition(".")[0] or 0), path.read_bytes()))
        assert kept
        for name, parts in kept.items():
            for position, data in parts:
                assert before[name][position : position + len(data)] == data
        for name, data in before.items():
            now = (store / name).read_bytes() if (store / name).exists() else b""
            if not now.startswith(data):  # adding records to a journal cuts nothing
                changed = [at for at in range(len(data)) if data[at : at + 1] != now[at : at + 1]]
                assert name in kept, name
                assert all(any(p <= at < p + len(d) for p, d in kept[name]) for at in changed), name


@pytest.mark.parametrize("clean", [True, False])
def test_stopped_at_any_step_it_goes_on_when_run_again(stores: dict[bool, Path], clean: bool, tmp_path: Path) -> None:
    origin, harm = worst(stores, tmp_path / "origin", clean)
    before = served(origin, Mode.DROPMALFORMED)
    whole = tmp_path / "whole"
    shutil.copytree(origin, whole)
    with stopped_at(None) as faults:
        repair(whole)
    assert faults.count > 25
    rows = served(whole)
    for last in sample(range(faults.count), 12, f"repair stopped {clean}"):
        store = tmp_path / str(last)
        shutil.copytree(origin, store)
        with pytest.raises(Died), stopped_at(last, torn=last % 2 == 0):
            repair(store)
        repair(store)
        check(store, before, harm)
        assert served(store) == rows
        shutil.rmtree(store)


def test_a_power_failure_loses_no_message(stores: dict[bool, Path], tmp_path: Path) -> None:
    origin, harm = worst(stores, tmp_path / "origin", clean=False)
    before = served(origin, Mode.DROPMALFORMED)
    store = tmp_path / "store"
    shutil.copytree(origin, store)
    with recorded(store) as changes:
        repair(store)
    found = list(survivors(changes, 1, choices=1))
    for number, (moment, kept) in enumerate(random.Random(3).sample(found, 12)):
        left = tmp_path / f"left {number}"
        left_behind(origin, changes[:moment], kept, left)
        repair(left)
        check(left, before, harm)


def test_a_stopped_copy_is_started_over(stores: dict[bool, Path], tmp_path: Path) -> None:
    store, harm = worst(stores, tmp_path / "store", clean=False)
    before, target = served(store, Mode.DROPMALFORMED), tmp_path / "repaired"
    with stopped_at(None) as faults:
        repair(store, tmp_path / "other")
    for last in sorted(random.Random(2).sample(range(faults.count), 10)):
        with pytest.raises(Died), stopped_at(last):
            repair(store, target)
        repair(store, target)
        check(target, before, harm)
        shutil.rmtree(target)


def test_other_targets_and_a_running_node_are_refused(stores: dict[bool, Path], tmp_path: Path) -> None:
    store, _ = worst(stores, tmp_path / "store", clean=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    with pytest.raises(MqStoreError, match="is not empty"):
        repair(store, tmp_path / "full")
    with pytest.raises(MqStoreError, match="inside the other"):
        repair(store, store / "inside")
    node = tmp_path / "node" / "msg_stores" / "vhosts" / "v"
    shutil.copytree(store, node)
    (tmp_path / "node.pid").write_text(str(os.getpid()))
    files = fingerprint(node)
    for target in (None, tmp_path / "copy"):
        with pytest.raises(StoreLockedError, match="running node"):
            repair(node, target)
    after = fingerprint(node)
    assert {path for path in after if after[path] != files.get(path)} <= {".", ".mqstore", ".mqstore/lock"}
    assert not (tmp_path / "copy").exists()


VERSION_2 = {
    # By damage: the file, the change, the rows left, and what real 3.10.8 nodes did after a clean stop and a kill.
    "header": ("0.qi", lambda data: data.__setitem__(0, 0), 1173, "ignores it", "forgets the messages"),
    "store": (
        "1.qs", lambda data: data.__delitem__(slice(len(data) // 2, None)), 818,
        "crashes the queue at this message", "forgets the messages",
    ),
    **{what: ("0.qi", harm.change, 1173 - harm.lost, harm.clean, harm.killed)
       for what, harm in version_2_harm.HARMS.items()},
}  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", VERSION_2)
def test_queues_of_version_2(what: str, clean: bool, tmp_path: Path) -> None:
    """`verify` reports what a real node does with the damage; after a repair, all messages that are left are read."""
    name, change, rows, *effects = VERSION_2[what]
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    if not clean:
        (store / "recovery.dets").unlink()
        for table in ("clean.dot", "file_summary.ets", "msg_store_index.ets"):
            (store / "msg_store_persistent" / table).unlink()
    edit(queue_file(store, "v2.q", name), change)
    with open_store(str(store)) as opened:
        reported = {finding.effect for finding in opened.verify() if finding.kind == "segment"}
    assert reported == {effects[not clean]}
    assert repair(store)
    assert golden.table(store).num_rows == rows
    with open_store(str(store)) as opened:
        assert list(opened.verify()) == []
