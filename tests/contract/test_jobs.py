"""Writing: a job takes effect as a whole or not at all."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError, RowError, StoreLockedError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.job import is_orphan
from storage_core.store import Definitions, ScanRequest
from tests.contract.engine import Engine, Message, Seen, read
from tests.contract.messages import COUNTS, NEW, numbered
from tests.contract.writing import BODIES, begin_job, bodies, contents, staged, written

# -- append


def test_append_makes_a_store_and_says_how_many(engine: Engine, tmp_path: Path) -> None:
    root = engine.made(tmp_path / "new", NEW)
    assert sorted(engine.rows(root)) == numbered(NEW)
    with open_store(str(root)) as opened:
        assert opened.engine == engine.name
        assert list(opened.snapshot().warnings()) == []


def test_append_adds_after_what_is_there(engine: Engine, own: Path, messages: list[Message]) -> None:
    before = sorted(engine.rows(own))
    with open_store(str(own)) as opened:
        assert opened.append(engine.table(NEW)) == len(NEW)
    after = sorted(engine.rows(own))
    assert [row for row in after if row[2] not in BODIES] == before
    for queue in ("alpha", "beta", "omega"):
        assert bodies(engine, own, queue) == written(messages, queue) + written(NEW, queue)


def test_append_takes_tables_and_batches(engine: Engine, tmp_path: Path) -> None:
    table = engine.table(NEW)
    forms = {
        "chunks": pa.Table.from_batches(table.to_batches(max_chunksize=3)),
        "batch": table.combine_chunks().to_batches()[0],
        "other order": table.select(table.schema.names[::-1]),
        "sliced": pa.concat_tables([table, table]).slice(len(table)),
    }
    for name, form in forms.items():
        with engine.new(tmp_path / name) as opened:
            assert opened.append(form) == len(NEW)
        assert sorted(engine.rows(tmp_path / name)) == numbered(NEW), name


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_a_body_is_text_or_bytes(engine: Engine, tmp_path: Path, kind: pa.DataType) -> None:
    table = engine.table(NEW)
    number = table.schema.get_field_index("body")
    with engine.new(tmp_path / "new") as opened:
        opened.append(table.set_column(number, "body", table["body"].cast(kind)))
    assert sorted(engine.rows(tmp_path / "new")) == numbered(NEW)


def test_what_is_read_can_be_written(engine: Engine, store: Path, tmp_path: Path, messages: list[Message]) -> None:
    with open_store(str(store)) as opened:
        table = pa.Table.from_batches(read(opened.snapshot().plan(ScanRequest())))
    with engine.new(tmp_path / "copy") as opened:
        assert opened.append(table) == len(messages)
    for queue in COUNTS:
        assert bodies(engine, tmp_path / "copy", queue) == written(messages, queue)


def test_one_queue_may_be_named_for_all_rows(engine: Engine, tmp_path: Path) -> None:
    table = engine.table(NEW).drop_columns([engine.queue_column])
    with engine.new(tmp_path / "new") as opened:
        assert opened.append(table, topic="all") == len(NEW)
    assert sorted(bodies(engine, tmp_path / "new", "all")) == sorted(BODIES)


def test_an_empty_job_changes_nothing(engine: Engine, own: Path) -> None:
    before = contents(own)
    with open_store(str(own), engine.name) as opened:
        assert opened.append(engine.table(NEW).slice(0, 0)) == 0
        job = opened.begin_job(engine.table(NEW).schema.names)
        assert job.commit([]) == 0
    assert contents(own) == before


@pytest.mark.parametrize("tasks", [0, 2])
def test_an_empty_job_makes_an_empty_store(engine: Engine, tmp_path: Path, tasks: int) -> None:
    """The store reads as no rows and accepts the next job."""
    root = tmp_path / "new"
    with engine.new(root) as opened:
        job = opened.begin_job(engine.table(NEW).schema.names)
        assert job.commit([staged(engine, job, [], number) for number in range(tasks)]) == 0
    assert find_stores(str(root)) == [str(root)]
    assert engine.rows(root) == []
    with open_store(str(root)) as opened:
        assert list(opened.queues()) == []
        assert sum(batch.num_rows for batch in opened.view("queues")) == 0
        assert opened.append(engine.table(NEW)) == len(NEW)
    assert len(engine.rows(root)) == len(NEW)


def test_a_refused_first_job_leaves_no_directory(engine: Engine, tmp_path: Path) -> None:
    root = tmp_path / "far" / "below" / "new"
    table = engine.table(NEW).drop_columns(["body"]).append_column("body", pa.nulls(len(NEW), pa.string()))
    with engine.new(root) as opened, pytest.raises(RowError):
        opened.append(table)
    assert list(tmp_path.iterdir()) == []


# -- jobs


def test_tasks_follow_each_other_by_partition(engine: Engine, own: Path, messages: list[Message]) -> None:
    job = begin_job(engine, own)
    parts = [staged(engine, job, NEW[number * 10 : number * 10 + 10], number) for number in (2, 0, 1)]
    assert job.commit(parts) == len(NEW)
    for queue in ("alpha", "beta", "omega"):
        assert bodies(engine, own, queue) == written(messages, queue) + written(NEW, queue)


def test_tasks_without_rows_count_as_none(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    parts = [staged(engine, job, [], 0), staged(engine, job, NEW, 1), staged(engine, job, [], 2)]
    assert [part.rows for part in parts] == [0, len(NEW), 0]
    assert job.commit(parts) == len(NEW)
    assert len(engine.rows(own)) == sum(COUNTS.values()) + len(NEW)


def test_an_attempt_that_nobody_takes_leaves_nothing(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    part = staged(engine, job, NEW, 0)
    staged(engine, job, NEW[:7], 0, attempt=1, task=5)
    staged(engine, job, NEW[:3], 4, attempt=0, task=6)
    assert job.commit([part]) == len(NEW)
    assert len(engine.rows(own)) == sum(COUNTS.values()) + len(NEW)
    assert not (own / ".mqstore" / "staging").exists()


def test_what_is_staged_is_not_there_yet(engine: Engine, own: Path, everything: list[Seen]) -> None:
    job = begin_job(engine, own)
    part = staged(engine, job, NEW)
    assert sorted(engine.rows(own)) == everything
    with open_store(str(own)) as opened:
        assert [queue.topic for queue in opened.queues()] == sorted(COUNTS)
    job.commit([part])
    assert len(engine.rows(own)) == len(everything) + len(NEW)


def test_another_process_may_commit(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    parts = [staged(engine, job, NEW)]
    assert pickle.loads(pickle.dumps(job)).commit(parts) == len(NEW)


def test_an_aborted_job_leaves_nothing(engine: Engine, own: Path) -> None:
    before = contents(own)
    for stage in (False, True):
        job = begin_job(engine, own)
        if stage:
            staged(engine, job, NEW)
        for _ in range(2):
            job.abort()
        assert contents(own) == before


def test_an_aborted_job_of_a_new_store_leaves_none(engine: Engine, tmp_path: Path) -> None:
    root = tmp_path / "here" / "new"
    root.parent.mkdir()
    with engine.new(root) as opened:
        job = opened.begin_job(engine.table(NEW).schema.names)
    staged(engine, job, NEW)
    job.abort()
    assert set(contents(root)) <= {".", "new"}


def test_an_abort_undoes_no_commit(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    job.commit([staged(engine, job, NEW)])
    before = contents(own)
    job.abort()
    assert contents(own) == before


def test_a_job_is_committed_once(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    parts = [staged(engine, job, NEW)]
    job.commit(parts)
    before = contents(own)
    with pytest.raises(MqStoreError):
        job.commit(parts)
    assert contents(own) == before


def test_a_task_after_the_abort_is_one_line_and_leaves_nothing(engine: Engine, own: Path) -> None:
    before = contents(own)
    job = begin_job(engine, own)
    job.abort()
    with pytest.raises(MqStoreError) as caught:
        staged(engine, job, NEW)
    assert "\n" not in str(caught.value)
    assert contents(own) == before


@pytest.mark.parametrize("harm", ["lost", "cut"])
def test_a_staged_file_that_is_not_what_its_task_wrote_refuses_the_job(
    engine: Engine, own: Path, harm: str, everything: list[Seen]
) -> None:
    before = contents(own)
    job = begin_job(engine, own)
    part = staged(engine, job, NEW)
    largest = max(part.files, key=lambda file: file.size)
    (path,) = (own / ".mqstore" / "staging").rglob(largest.name)
    path.unlink() if harm == "lost" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MqStoreError, match=largest.name):
        job.commit([part])
    job.abort()
    assert contents(own) == before
    assert sorted(engine.rows(own)) == everything


def test_warnings_are_lines(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    job.commit([staged(engine, job, NEW)])
    assert list(job.warnings) == []


# -- several jobs


def test_two_jobs_at_once_are_both_there(engine: Engine, own: Path, messages: list[Message]) -> None:
    first, second = begin_job(engine, own), begin_job(engine, own)
    parts = [staged(engine, job, part) for job, part in ((first, NEW[:15]), (second, NEW[15:]))]
    assert second.commit(parts[1:]) == len(NEW) - 15
    assert first.commit(parts[:1]) == 15
    for queue in ("alpha", "beta", "omega"):
        expected = written(messages, queue) + written(NEW[15:], queue) + written(NEW[:15], queue)
        assert bodies(engine, own, queue) == expected
    assert not (own / ".mqstore" / "staging").exists()


def test_a_second_writer_waits_and_gives_up_in_one_line(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own, lockTimeout="50ms")
    before = contents(own)
    parts = [staged(engine, job, NEW)]
    with (
        FileLock(str(own / ".mqstore" / "lock"), 0, "a test"),
        pytest.raises(StoreLockedError, match=r"^StoreLockedError: .*locked") as caught,
    ):
        job.commit(parts)
    assert "\n" not in str(caught.value)
    job.abort()
    assert {name for name in contents(own) if "staging" not in name} == {
        name for name in before if "staging" not in name
    }
    job = begin_job(engine, own, lockTimeout="50ms")
    assert job.commit([staged(engine, job, NEW)]) == len(NEW)


def test_definitions_are_what_a_node_imports_where_it_must(engine: Engine, own: Path) -> None:
    with open_store(str(own)) as opened:
        try:
            found = opened.definitions()
        except UnsupportedFormatError as error:
            assert str(own) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            assert opened.virtual_host is None
            return
    assert isinstance(found, Definitions)
    assert [queue["name"] for queue in found.document["queues"]] == sorted(COUNTS)
    assert [host["name"] for host in found.document["vhosts"]] == [opened.virtual_host]
    assert found.folder


# -- writers that died


@pytest.fixture(params=["died later", "was dead already"])
def dead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Until it is called, jobs belong to a process that does not exist: its number is above all others.

    A worker that briefly outlives its session records an owner that is already dead.
    """
    with monkeypatch.context() as patch:
        patch.setattr(system, "session_process", lambda _: 1 << 22)
        if request.param == "died later":
            patch.setattr(system, "process_start", lambda _: 1)
        yield patch.undo


def test_the_next_job_sweeps_what_a_dead_writer_staged(
    engine: Engine, own: Path, dead: Callable[[], None], everything: list[Seen]
) -> None:
    before = contents(own)
    job = begin_job(engine, own)
    staged(engine, job, NEW)
    dead()
    assert sorted(engine.rows(own)) == everything, "a reader sees nothing of it"
    assert contents(own) != before
    with open_store(str(own)) as opened:
        assert opened.append(engine.table(NEW[:1])) == 1
    assert not (own / ".mqstore" / "staging").exists()
    assert len(engine.rows(own)) == len(everything) + 1


def test_the_next_job_spares_what_a_living_writer_staged(engine: Engine, own: Path) -> None:
    job = begin_job(engine, own)
    part = staged(engine, job, NEW)
    with open_store(str(own)) as opened:
        assert opened.append(engine.table(NEW[:1])) == 1
    assert job.commit([part]) == len(NEW)


def test_a_job_that_ends_while_another_looks_is_no_orphan(tmp_path: Path) -> None:
    assert not is_orphan(str(tmp_path / "ended"))


def test_a_folder_without_a_note_is_swept_when_it_was_set_aside(engine: Engine, own: Path) -> None:
    """A job that ends renames its folder first and removes the owner's note last; it may be killed in between."""
    staging = own / ".mqstore" / "staging"
    for name in ("begun", "given-up.dropped"):
        (staging / name).mkdir(parents=True)
    with open_store(str(own)) as opened:
        assert opened.append(engine.table(NEW[:1])) == 1
    assert [path.name for path in staging.iterdir()] == ["begun"], "its owner may be about to write the note"


def test_a_job_begins_while_another_ends(engine: Engine, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, make = own / ".mqstore" / "staging", system.make_folder
    ended: list[str] = []

    def late(path: str, exist_ok: bool = True) -> None:
        if not ended and Path(path).parent == parent:
            ended.append(path)
            raise FileNotFoundError(2, "No such file or directory", path)
        make(path, exist_ok)

    monkeypatch.setattr(system, "make_folder", late)
    part = staged(engine, job := begin_job(engine, own), NEW)
    assert job.commit([part]) == len(NEW)
    assert ended


def test_a_job_begins_and_ends_while_another_process_stages(engine: Engine, own: Path) -> None:
    other = begin_job(engine, own)
    note = own / ".mqstore" / "staging" / other.job / "owner.json"
    with note.open("rb") as file, subprocess.Popen(["sleep", "600"], stdin=file) as task:
        try:
            part = staged(engine, job := begin_job(engine, own), NEW)
            assert job.commit([part]) == len(NEW)
        finally:
            task.kill()


def test_a_job_begins_while_another_process_commits(engine: Engine, own: Path) -> None:
    """That one holds the writers' lock, and may have any file of the store open."""
    begin_job(engine, own).abort()
    held = next(path for path in sorted(own.rglob("*")) if path.is_file() and ".mqstore" not in path.parts)
    with held.open("rb") as file, subprocess.Popen(["sleep", "600"], stdin=file) as other:
        try:
            with FileLock(str(own / ".mqstore" / "lock"), 0, "nobody"):
                job = begin_job(engine, own)
        finally:
            other.kill()
    assert job.commit([staged(engine, job, NEW)]) == len(NEW)
