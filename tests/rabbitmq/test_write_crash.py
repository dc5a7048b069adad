"""Jobs that are stopped at every step: readers see the store before or after, and the next job finishes them."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.files import system
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.disk import recovery_terms
from storage_core.rabbitmq.store import VhostStore
from storage_core.rabbitmq.write import publish
from storage_core.rabbitmq.write.job import finish_unfinished
from tests.faults import Died, stopped_at
from tests.rabbitmq import golden
from tests.rabbitmq.writing import append_as_version_2, check, rows, small
from tests.support.sampling import distance, first_step

pytestmark = pytest.mark.sampled


def attempt(store: VhostStore, table: pa.Table) -> None:
    job = store.begin_job(table.schema.names)
    half = len(table) // 2
    job.commit(
        [job.stage(iter(part.to_batches()), n) for n, part in enumerate((table.slice(0, half), table.slice(half)))]
    )


def stop_after_commit(store: VhostStore, table: pa.Table) -> None:
    """Runs a job that dies before it moves a file."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        from storage_core.rabbitmq.write import job

        def stopped(*_: Any) -> None:
            raise Died

        monkeypatch.setattr(job, "carry_out", stopped)
        with pytest.raises(Died):
            attempt(store, table)


@pytest.mark.parametrize(
    ("version", "dirty", "stride"),
    [(1, False, distance(4)), (1, True, distance(8)), (2, False, distance(5)), (2, True, distance(9))],
    ids=["clean", "dirty", "clean version 2", "dirty version 2"],
)
def test_stopped_at_every_step(version: int, dirty: bool, stride: int, tmp_path: Path) -> None:
    """After a stop at any step a reader sees the store before the job or after it; the next job finishes it."""
    old, new, last = rows(40, 1), rows(50, 2), rows(10, 3)
    made = small(tmp_path / "made")
    (VhostStore.append if version == 1 else append_as_version_2)(made, old)
    if dirty:
        (Path(made.path) / "recovery.dets").unlink()
    step, outcomes, names = first_step(stride, f"write {dirty} {version}") + 1 - stride, set(), set()
    while True:
        step += stride
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        store = small(tmp_path / str(step))
        with suppress(Died), stopped_at(step - 1) as faults:
            attempt(store, new)
        names |= {faults.log[-1].split()[0]} if faults.struck else set()
        found = len(golden.table(Path(store.path)))
        assert found in {40, 90}
        check(store, old if found == 40 else pa.concat_tables([old, new]))
        committed = (Path(store.path) / ".mqstore" / "intent.json").exists() or found == 90
        if not dirty:
            assert store.snapshot().locations.clean
        store.append(last)
        check(store, pa.concat_tables([old, new, last] if committed else [old, last]))
        assert store.snapshot().locations.clean is not dirty
        outcomes.add((found, committed))
        if not faults.struck:
            break
        shutil.rmtree(tmp_path / str(step))
    assert {(40, False), (40, True), (90, True)} <= outcomes
    assert step > (90 if dirty else 150)
    assert len(names) >= 4
    everything = {"pwrite", "rename", "open_write", "fsync", "sync_folder", "make_folder", "unlink"}
    assert stride > 1 or everything <= names


def test_a_node_that_ran_in_between_is_not_overwritten(tmp_path: Path) -> None:
    """The job stopped after its commit point, and its numbers were taken: it uses others, and the store is dirty."""
    store = small(tmp_path)
    first, table = rows(20, 7), rows(40)
    store.append(first)
    stop_after_commit(store, table)
    other = small(tmp_path / "other")
    other.append(rows(60, 9))
    own = {path.name for path in (Path(store.path) / "msg_store_persistent").glob("*.rdq")}
    taken = sorted(p for p in (Path(other.path) / "msg_store_persistent").glob("*.rdq") if p.name not in own)
    assert taken
    for path in taken:
        (Path(store.path) / "msg_store_persistent" / path.name).write_bytes(path.read_bytes())
    store.append(rows(3, 4))
    check(store, pa.concat_tables([first, table, rows(3, 4)]))
    for path in taken:
        assert (Path(store.path) / "msg_store_persistent" / path.name).read_bytes() == path.read_bytes()
    assert not store.snapshot().locations.clean


def stop_before_segments(store: VhostStore, table: pa.Table, linking: bool = True) -> tuple[list[Path], Path]:
    """Runs a job that dies once its message files are in place. Returns these files and the spare."""
    move = publish._move

    def until_a_segment(source: str, target: str) -> None:
        if target.endswith(".idx"):
            raise Died
        move(source, target)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(publish, "_move", until_a_segment)
        if not linking:
            monkeypatch.setattr(system, "link", lambda *_: False)
        with pytest.raises(Died):
            attempt(store, table)
    root = Path(store.path)
    intent = json.loads((root / ".mqstore" / "intent.json").read_text())
    moved = [root / target for _, target in intent["moves"] if target.endswith(".rdq")]
    assert len(moved) > 1
    return moved, root / intent["spare"]


@pytest.mark.parametrize("linking", [True, False], ids=["hard links", "a file system without"])
def test_message_files_that_a_node_removed_in_between(linking: bool, tmp_path: Path) -> None:
    """Before their segments were in place: they are restored from staging. What the node wrote to the spare stays."""
    store, first, table = small(tmp_path), rows(20, 7), rows(40)
    store.append(first)
    folder = Path(store.path) / "msg_store_persistent"
    moved, spare = stop_before_segments(store, table, linking)
    assert spare.read_bytes() == b""
    assert max(folder.glob("*.rdq"), key=lambda path: int(path.stem)) == spare
    copied = tmp_path / "copied"
    shutil.copytree(store.path, copied / "v")
    finish_unfinished(str(copied / "v"), 60)
    check(open_store(str(copied / "v")), pa.concat_tables([first, table]))
    assert open_store(str(copied / "v")).snapshot().locations.clean
    if linking:
        for path in moved[1:]:
            path.unlink()
        spare.write_bytes((folder / "0.rdq").read_bytes())
    store.append(rows(3, 4))
    check(store, pa.concat_tables([first, table, rows(3, 4)]))
    assert spare.exists() is linking
    assert store.snapshot().locations.clean is not linking
    assert not [path for path in folder.glob("*.rdq") if path.stat().st_nlink > 1]


def test_message_files_in_place_keep_their_names_when_another_is_taken(tmp_path: Path) -> None:
    """A node reused the number of the first, which it had removed; the others are in place, and none is added twice."""
    store, first, table = small(tmp_path), rows(20, 7), rows(60)
    store.append(first)
    folder = Path(store.path) / "msg_store_persistent"
    moved, _ = stop_before_segments(store, table)
    kept = {path.name: path.stat().st_ino for path in moved[1:]}
    moved[0].unlink()
    moved[0].write_bytes((folder / "0.rdq").read_bytes())
    finish_unfinished(store.path, 60)
    check(store, pa.concat_tables([first, table]))
    inodes = {path.name: path.stat().st_ino for path in folder.glob("*.rdq")}
    assert len({*inodes.values()}) == len(inodes)
    assert {name: inodes[name] for name in kept} == kept


def test_a_clean_stop_of_a_node_in_between_is_not_overwritten(tmp_path: Path) -> None:
    """No name is taken, but the terms have changed since the job read them: the store is dirty."""
    store = small(tmp_path)
    first, table = rows(20, 7), rows(40)
    store.append(first)
    stop_after_commit(store, table)
    path = Path(store.path) / "recovery.dets"
    path.write_bytes(recovery_terms.encode(replace(t, persistent_count=0) for t in store.snapshot().terms.values()))
    store.append(rows(3, 4))
    assert not store.snapshot().locations.clean
    check(store, pa.concat_tables([first, table, rows(3, 4)]))


@pytest.mark.parametrize("moved", [0, 1], ids=["both files wait", "the index waits"])
def test_a_segment_of_version_2_whose_number_is_taken(moved: int, tmp_path: Path) -> None:
    """Both of its files move to one other number, even if the node appended to the first that was in place; a stop in
    between makes no difference.
    """
    first, table = rows(20, 7), rows(40)
    made = small(tmp_path / "made")
    append_as_version_2(made, first)
    other = small(tmp_path / "other")
    append_as_version_2(other, first)
    other.append(rows(30, 9))
    stop_after_commit(made, table)
    made_root, theirs = Path(made.path), {}
    intent = json.loads((made_root / ".mqstore" / "intent.json").read_text())
    staging = made_root / ".mqstore" / "staging" / intent["job"]
    for source, target in [move for move in intent["moves"] if move[1].endswith("/1.qs")] if moved else ():
        (staging / source).rename(made_root / target)
        with (made_root / target).open("ab") as file:
            file.write(b"of a node")
    for index in Path(other.path).glob("queues/*/1.qi"):
        target = str(index.relative_to(other.path))
        (made_root / target).write_bytes((Path(other.path) / target).read_bytes())
        if not moved:
            store_of = target.replace(".qi", ".qs")
            (made_root / store_of).write_bytes((Path(other.path) / store_of).read_bytes())
        theirs[target] = (made_root / target).read_bytes()
    step = 0
    while True:
        step += 1
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        store = small(tmp_path / str(step))
        with suppress(Died), stopped_at(step - 1) as faults:
            finish_unfinished(store.path, 60)
        finish_unfinished(store.path, 60)
        assert {target: (Path(store.path) / target).read_bytes() for target in theirs} == theirs
        ours = [str(p.relative_to(store.path)) for p in Path(store.path).glob("queues/*/*.qi")]
        assert len(ours) == 4 * len(theirs)
        for target in theirs:
            (Path(store.path) / target).unlink()
        check(store, pa.concat_tables([first, table]))
        if not faults.struck:
            break
        shutil.rmtree(tmp_path / str(step))
    assert step > 10
