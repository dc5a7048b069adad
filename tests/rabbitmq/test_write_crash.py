"""Jobs that are stopped at every step: readers see the store before or after, the next job finishes them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.rabbitmq.store import VhostStore
from tests.faults import Died, stopped_at
from tests.rabbitmq import golden
from tests.rabbitmq.writing import check, rows, small
from tests.support.sampling import distance, first_step

pytestmark = pytest.mark.sampled


def attempt(store: VhostStore, table: pa.Table) -> None:
    job = store.begin_job(table.schema.names)
    half = len(table) // 2
    job.commit(
        [job.stage(iter(part.to_batches()), n) for n, part in enumerate((table.slice(0, half), table.slice(half)))]
    )


@pytest.mark.parametrize(("dirty", "stride"), [(False, distance(4)), (True, distance(8))], ids=["clean", "dirty"])
def test_stopped_at_every_step(dirty: bool, stride: int, tmp_path: Path) -> None:
    """After a stop at any step a reader sees the store before the job, or after it; the next job finishes it."""
    old, new, last = rows(40, 1), rows(50, 2), rows(10, 3)
    made = small(tmp_path / "made")
    made.append(old)
    if dirty:
        (Path(made.path) / "recovery.dets").unlink()
    step, outcomes, names = first_step(stride, f"write {dirty}") + 1 - stride, set(), set()
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
    """The job stopped behind its commit point, and its numbers were taken: it goes to others, the store is dirty."""
    store = small(tmp_path)
    first, table = rows(20, 7), rows(40)
    store.append(first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        from storage_core.rabbitmq.write import job

        def stopped(*_: Any) -> None:
            raise Died

        monkeypatch.setattr(job, "carry_out", stopped)
        with pytest.raises(Died):
            attempt(store, table)
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
