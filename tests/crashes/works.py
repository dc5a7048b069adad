"""Every operation that changes a store, as a work to interrupt."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.rabbitmq import open_store as open_vhost
from storage_core.rocketmq.write.commit_point import GUARD
from tests.crashes.work import State, Work
from tests.faults import Died, stopped_at
from tests.golden import archive
from tests.rabbitmq import golden
from tests.rabbitmq.writing import rows as rabbit_rows
from tests.support.rocketmq_copies import write_options
from tests.support.rocketmq_files import overwrite, records
from tests.support.rocketmq_writes import GEOMETRY, NEW_ROWS, bodies, commit_point, made_store, options_of, rows, write

SMALL_STORE = "delay-4.9.3"


def _store(folder: Path) -> Path:
    return folder / "store"


def _bodies(folder: Path) -> State:
    return bodies(_store(folder))


def _one_more(folder: Path) -> None:
    write(_store(folder), rows(1, 900), **GEOMETRY)


# -- RocketMQ


def append(kind: str) -> Work:
    """A write that fills log, queue and index files and starts new ones; some kinds have a torn end to cut off."""

    def make(folder: Path) -> None:
        made = made_store(kind, folder / "made")
        if made.exists():
            made.rename(_store(folder))
        shutil.rmtree(folder / "made", ignore_errors=True)

    def again(folder: Path) -> None:
        write(_store(folder), rows(1, 900), **options_of(kind))

    return Work(f"append to {kind}", make, lambda folder: _append(folder, kind), _bodies, again)


def _append(folder: Path, kind: str) -> None:
    write(_store(folder), NEW_ROWS, **options_of(kind))


def other_disk() -> Work:
    """A write into a store whose log is on another disk."""

    def do(folder: Path) -> None:
        with log_on_other_disk():
            _append(folder, "new")

    def again(folder: Path) -> None:
        with log_on_other_disk():
            _one_more(folder)

    return Work("append on two disks", lambda folder: None, do, _bodies, again)


@contextmanager
def log_on_other_disk() -> Iterator[None]:
    """Makes renames into the folder of the log or out of it fail, as they do between disks."""
    rename = system.rename

    def within_one_disk(source: str, target: str) -> None:
        if ("/commitlog/" in source) != ("/commitlog/" in target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        rename(source, target)

    with patch.object(system, "rename", within_one_disk):
        yield


def redo() -> Work:
    """The next write after one that was stopped past its commit point: it first completes that one, then its own."""

    def make(folder: Path) -> None:
        made_store("own", _store(folder))
        counted = folder / "counted"
        shutil.copytree(_store(folder), counted)
        with stopped_at(None) as clock:
            write(counted, NEW_ROWS)
        shutil.rmtree(counted)
        last = commit_point(clock.log) + 20
        try:
            with stopped_at(last):
                write(_store(folder), NEW_ROWS)
        except Died:
            return

    def between(before: State, after: State) -> list[State]:
        return [[row for row in after if not row[3].startswith(b"body 700 ")]]  # type: ignore[attr-defined]

    return Work("redo", make, lambda folder: _write(folder, rows(1, 700)), _bodies, _one_more, between)


def _write(folder: Path, table: pa.Table) -> None:
    write(_store(folder), table)


def shards() -> Work:
    """One store per task, all put in place by one rename. A second run is the same version of the same job."""

    def do(folder: Path) -> None:
        with open_store(str(folder / "target"), "rocketmq") as store:
            job = store.begin_job(publish="shards", txnAppId="a", txnVersion=1, **GEOMETRY)
        parts = [job.stage(iter(rows(20, 100 * n).to_batches()), n) for n in range(2)]
        job.commit(parts)

    def seen(folder: Path) -> State:
        target = folder / "target"
        return [bodies(Path(path)) for path in find_stores(str(target))] if target.exists() else []

    return Work("shards", lambda folder: None, do, seen, do)


def micro_batch() -> Work:
    """One batch of a streaming query; the second run is Spark's replay of it."""

    def make(folder: Path) -> None:
        write(_store(folder), rows(10), **GEOMETRY)

    def do(folder: Path) -> None:
        with open_store(str(_store(folder)), "rocketmq") as store:
            job = pickle.loads(pickle.dumps(store.begin_job(NEW_ROWS.schema.names)))
        parts = [job.stage(iter(NEW_ROWS.to_batches()))]
        pickle.loads(pickle.dumps(job)).of_query("query", 4).commit(parts)

    return Work("micro-batch of a stream", make, do, _bodies, do)


def _holed(folder: Path) -> None:
    store = archive.unpack(SMALL_STORE, folder)
    found = list(records(store))
    first, last = found[len(found) // 3], found[-1]
    overwrite(first.path, first.position, b"\1" * 60)
    overwrite(last.path, last.position + 70, bytes(last.size - 70))
    overwrite(sorted((store / "consumequeue").glob("*/*/*"))[0], 40, b"\7" * 12)


def _repair(folder: Path, target: str | None) -> None:
    with open_store(str(_store(folder)), **write_options(archive.info(SMALL_STORE)["settings"])) as store:
        store.repair(None if target is None else str(folder / target))


def _intact(folder: Path) -> State:
    with open_store(str(folder)) as store:
        return bodies(folder), list(store.verify())


def repair() -> Work:
    """A hole, a torn end and a wrong entry, repaired in place. Meanwhile a guard keeps out brokers, but not readers."""
    return Work(
        "repair in place", _holed, lambda folder: _repair(folder, None), lambda folder: _intact(_store(folder)),
        lambda folder: _repair(folder, None), None,
    )  # fmt: skip


def repair_of_a_copy() -> Work:
    """The same repair into a new directory; the store stays unchanged."""

    def seen(folder: Path) -> State:
        target = folder / "target"
        return bodies(_store(folder)), _intact(target) if (target / "commitlog").exists() else None

    def again(folder: Path) -> None:
        target = folder / "target"
        try:
            _repair(folder, "target")
        except MqStoreError as error:
            assert "is not empty" in str(error)  # noqa: PT017
            assert not (target / "commitlog" / GUARD).exists()

    return Work("repair of a copy", _holed, lambda folder: _repair(folder, "target"), seen, again, None)


def offsets() -> Work:
    """A reset of the committed offsets of a consumer group."""

    def make(folder: Path) -> None:
        made_store("own", _store(folder))
        (_store(folder) / "config").mkdir(exist_ok=True)
        _set(folder, 3)

    def seen(folder: Path) -> State:
        with open_store(str(_store(folder))) as store:
            return [row for batch in store.view("offsets") for row in batch.to_pylist()]

    return Work("offsets reset", make, lambda folder: _set(folder, 7), seen, lambda folder: _set(folder, 7))


def _set(folder: Path, offset: int) -> None:
    with open_store(str(_store(folder))) as store:
        store.set_group_offsets("billing", {("orders", 0): offset})


# -- RabbitMQ

SMALL = {"queue_index_segment_entry_count": 16, "msg_store_file_size_limit": 20000}


def bulk_write(kind: str) -> Work:
    """Adds rows to a vhost's store that was stopped cleanly, to one that was not, or to a new one."""
    old, new, last = rabbit_rows(40, 1), rabbit_rows(50, 2), rabbit_rows(10, 3)

    def make(folder: Path) -> None:
        if kind == "new":
            return
        _add(folder, old)
        if kind == "killed":
            (_vhost(folder) / "recovery.dets").unlink()

    def seen(folder: Path) -> State:
        if not _vhost(folder).exists() or not (_vhost(folder) / "queues").exists():
            return []
        found = golden.table(_vhost(folder), columns=("queue", "sequenceId", "body", "headers"))
        return sorted(map(str, found.to_pylist()))

    return Work(f"bulk write to a {kind} store", make, lambda folder: _add(folder, new), seen,
                lambda folder: _add(folder, last))  # fmt: skip


def _vhost(folder: Path) -> Path:
    return folder / "vhosts" / "v"


def _add(folder: Path, table: pa.Table) -> None:
    store = open_vhost(str(_vhost(folder)), SMALL)
    job = store.begin_job(table.schema.names)
    half = len(table) // 2
    parts = [table.slice(0, half), table.slice(half)]
    try:
        job.commit([job.stage(iter(part.to_batches()), number) for number, part in enumerate(parts)])
    except BaseException:
        job.abort()
        raise


WORKS = {
    work.name: work
    for work in (
        append("new"), append("own"), append("damaged-torn-tail-abort-4.9.3"),
        other_disk(), redo(), shards(), micro_batch(), repair(), repair_of_a_copy(), offsets(), bulk_write("clean"),
        bulk_write("killed"), bulk_write("new"),
    )
}  # fmt: skip
