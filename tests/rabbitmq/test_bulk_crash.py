"""Jobs that are stopped at every step: readers see the store before or after, the next job finishes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.files import system
from storage_core.rabbitmq.vhost import VhostStore
from tests.rabbitmq import golden
from tests.rabbitmq.writing import check, rows, small


class Stopped(BaseException):
    """The process is gone."""


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Every change of the disk counts; the one of number `step` and all after it do not happen."""
    count = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] >= step:
                raise Stopped
            return real(*arguments, **named)

        return call

    for name in ("pwrite", "fsync", "rename", "unlink", "make_folder", "sync_folder", "truncate"):
        monkeypatch.setattr(system, name, counted(getattr(system, name)))
    return lambda: count[0]


def attempt(store: VhostStore, table: pa.Table) -> None:
    job = store.begin_job(table.schema.names)
    half = len(table) // 2
    job.commit(
        [job.stage(iter(part.to_batches()), n) for n, part in enumerate((table.slice(0, half), table.slice(half)))]
    )


@pytest.mark.parametrize(("dirty", "stride"), [(False, 1), (True, 4)])
def test_stopped_at_every_step(dirty: bool, stride: int, tmp_path: Path) -> None:
    """After a stop at any step a reader sees the store before the job, or after it; the next job finishes it."""
    old, new, last = rows(40, 1), rows(50, 2), rows(10, 3)
    step, outcomes = 0, set()
    while True:
        step += stride
        store = small(tmp_path / str(step))
        store.append(old)
        if dirty:
            (Path(store.path) / "recovery.dets").unlink()
        with pytest.MonkeyPatch.context() as monkeypatch:
            taken = stop_at(monkeypatch, step)
            with suppress(Stopped):
                attempt(store, new)
            done = taken() < step
        found = len(golden.table(Path(store.path)))
        assert found in {40, 90}
        check(store, old if found == 40 else pa.concat_tables([old, new]))
        committed = (Path(store.path) / ".mqstore" / "intent.json").exists() or found == 90
        if not dirty:
            assert store.snapshot().places.clean
        store.append(last)
        check(store, pa.concat_tables([old, new, last] if committed else [old, last]))
        assert store.snapshot().places.clean is not dirty
        outcomes.add((found, committed))
        if done:
            break
    assert {(40, False), (40, True), (90, True)} <= outcomes
    assert step > 60


def test_a_node_that_ran_in_between_is_not_overwritten(tmp_path: Path) -> None:
    """The job stopped behind its commit point, and its numbers were taken: it goes to others, the store is dirty."""
    store = small(tmp_path)
    first, table = rows(20, 7), rows(40)
    store.append(first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        from storage_core.rabbitmq import bulk_writer

        def stopped(*_: Any) -> None:
            raise Stopped

        monkeypatch.setattr(bulk_writer, "carry_out", stopped)
        with pytest.raises(Stopped):
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
    assert not store.snapshot().places.clean
