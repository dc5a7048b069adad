"""Jobs that add rows: read back by our own reader, stopped at some steps, refused with one line."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.errors import (
    ColumnError,
    MqStoreError,
    OptionError,
    RowError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from storage_core.files import system
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.rabbitmq import open_store
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden
from tests.rabbitmq.writing import HEADERS, check, rows, small


def test_rows_come_back(tmp_path: Path) -> None:
    store = small(tmp_path)
    table = rows(400)
    assert store.append(table) == 400
    check(store, table)
    assert len(list(Path(store.path).rglob("*.rdq"))) > 5
    assert len(list(Path(store.path).rglob("*.idx"))) == sum(
        -(-len(table.filter(pc.equal(table["queue"], q))) // 16) for q in ("a", "b", "é c")
    )
    snapshot = store.snapshot()
    assert snapshot.locations.clean
    assert golden.table(Path(store.path))["redelivered"].to_pylist() == [False] * 400
    assert next(store.view("damage")).num_rows == 0
    assert not (Path(store.path) / ".mqstore" / "staging").exists()


def test_tasks_in_any_order_and_again(tmp_path: Path) -> None:
    store = small(tmp_path)
    table = rows(300)
    job = pickle.loads(pickle.dumps(store.begin_job(table.schema.names)))
    parts = [job.stage(iter(table.slice(n * 100, 100).to_batches(max_chunksize=33)), n) for n in (2, 0, 1)]
    # A second attempt of a task whose result is not used leaves nothing behind.
    job.stage(iter(table.slice(0, 100).to_batches()), 0, attempt=1, task=7)
    assert job.commit(parts) == 300
    check(store, table)
    store.append(rows(50, 2))
    check(store, pa.concat_tables([table, rows(50, 2)]))


def test_appending_to_a_clean_store_of_a_real_node(tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    before = golden.table(path)
    with open_store(str(path)) as store:
        table = pa.table({"body": [b"one", bytes(5000)], "queue": ["a.small", "new"]})
        assert store.append(table) == 2
    after = golden.table(path)
    assert len(after) == len(before) + 2
    old = golden.by_queue(before)
    for queue, found in golden.by_queue(after).items():
        expected = old.get(queue, [])
        kept = found[: len(expected)] if queue != "new" else []
        assert [golden.as_delivered(row) for row in kept] == [golden.as_delivered(row) for row in expected]
    added = [
        row for row in after.to_pylist() if (row["queue"], row["body"]) in {("a.small", b"one"), ("new", bytes(5000))}
    ]
    assert [(row["sequenceId"], row["redelivered"]) for row in added] == [(2048, False), (0, False)]


def test_appending_to_a_priority_queue_of_a_real_node(tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(path)) as store:
        store.append(pa.table({"body": [b"low", b"top", b"beyond"], "priority": [None, 3, 9]}), queue="e.prio")
        snapshot = store.snapshot()
        assert snapshot.locations.clean
    found = golden.table(path, topics=("e.prio",), columns=("body", "priority", "sequenceId"))
    bodies = [body for body in found["body"].to_pylist() if body in {b"low", b"top", b"beyond"}]
    assert bodies == [b"top", b"beyond", b"low"]
    priorities = [min(priority or 0, 3) for priority in found["priority"].to_pylist()]
    assert priorities == sorted(priorities, reverse=True)


def test_appending_to_a_killed_store_says_what_it_means(tmp_path: Path) -> None:
    path = golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST
    before = golden.table(path)
    with open_store(str(path)) as store:
        job = store.begin_job(queue="a.small")
        job.commit([job.stage(iter(pa.table({"body": ["x"]}).to_batches()))])
        why = "so a node will deliver all its messages as redelivered, the new ones too"
        assert job.warnings == [f"{path}: the store was not stopped cleanly, {why}"]
    after = golden.table(path)
    assert len(after) == len(before) + 1
    assert set(after["redelivered"].to_pylist()) == {True}


def test_raw_properties_win_and_rows_that_would_not_survive_are_counted(tmp_path: Path) -> None:
    store = small(tmp_path)
    raw = properties.encode({"headers": [(b"n", "I", -5)], "delivery_mode": 2, "priority": 4, "cluster_id": b"c"})
    transient = properties.encode({"delivery_mode": 1})
    table = pa.table(
        {
            "queue": ["q"] * 5,
            "body": ["1", "2", "3", "4", "5"],
            "rawProperties": pa.array([raw, None, transient, b"\0\0", None], pa.binary()),
            "deliveryMode": pa.array([None, 2, 2, 2, 1], pa.int32()),
            "messageId": ["ignored", "two", None, None, None],
        }
    )
    job = store.begin_job(table.schema.names)
    assert job.commit([job.stage(iter(table.to_batches()))]) == 2
    assert "3 rows with deliveryMode 1 (or none) were not written" in job.warnings[0]
    found = golden.table(Path(store.path)).to_pylist()
    assert [(row["body"], row["messageId"], row["priority"]) for row in found] == [(b"1", None, 4), (b"2", "two", None)]
    assert found[0]["rawProperties"] == raw
    assert found[0]["headers"] == [("n", "-5")]


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("body", [b"x", None], "row 1 of its task: column 'body' is null: an empty body is a body, null is none"),
        ("queue", ["q", None], "row 1 of its task: column 'queue' is null: a queue name is wanted"),
        ("queue", ["q", ""], "row 1 of its task: column 'queue' is empty: a queue name is wanted"),
        ("queue", ["q", "n" * 256], "longer than 255 bytes, the limit of a short string"),
        ("exchange", ["q", "é" * 128], "row 1 of its task: column 'exchange' is 'éé"),
        ("messageId", ["q", "n" * 256], "row 1 of its task: column 'messageId' is 'nnn"),
        ("routingKeys", [["q"], ["a", "n" * 256]], "row 1 of its task: column 'routingKeys' is 'nnn"),
        ("routingKeys", [["q"], ["a", None]], "row 1 of its task: column 'routingKeys' is null"),
        ("headers", [None, [("n" * 256, "")]], "row 1 of its task: column 'headers' is 'nnn"),
        ("priority", [1, 256], "row 1 of its task: column 'priority' is 256: it is 0 to 255"),
        ("deliveryMode", [2, 3], "row 1 of its task: column 'deliveryMode' is 3: it is 1 or 2"),
        ("rawProperties", [b"\0\0", b"\x10\0"], "row 1 of its task: column 'rawProperties' is 1000: it is not an AMQP"),
        ("rawProperties", [b"\0\0", bytes.fromhex("20000000000301615a")], "it is not an AMQP 0-9-1 property list"),
        ("timestamp", [0, -1], "row 1 of its task: column 'timestamp' is -1: it lies before 1970"),
    ],
)
def test_bad_rows(column: str, values: list[Any], text: str, tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(rows(30))
    before = fingerprint(Path(store.path))
    typed = pa.array(values, HEADERS) if column == "headers" else pa.array(values)
    table = pa.table({"queue": ["q", "q"], "body": ["a", "b"]})
    table = table.drop_columns([column]) if column in table.schema.names else table
    with pytest.raises(RowError) as error:
        store.append(table.append_column(column, typed))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    after = fingerprint(Path(store.path))
    assert {name: entry[1:] for name, entry in after.items()} == {name: entry[1:] for name, entry in before.items()}


def test_wrong_columns_and_options(tmp_path: Path) -> None:
    store = small(tmp_path)
    with pytest.raises(ColumnError, match="no such column; did you mean messageId"):
        store.append(pa.table({"queue": ["q"], "body": ["x"], "message_id": ["1"]}))
    with pytest.raises(ColumnError, match="column 'value': says the same as column body; drop one of the two"):
        store.append(pa.table({"queue": ["q"], "body": ["x"], "value": ["x"]}))
    with pytest.raises(ColumnError, match="column 'queue': a write needs this column"):
        store.append(pa.table({"body": ["x"]}))
    with pytest.raises(ColumnError, match="column 'body': a write needs this column"):
        store.append(pa.table({"queue": ["x"]}))
    with pytest.raises(OptionError, match="did you mean exchange"):
        store.append(pa.table({"body": ["x"]}), queue="q", exchnge="e")
    with pytest.raises(OptionError, match="give it too"):
        store.append(pa.table({"queue": ["q"], "body": ["x"]}), queueArguments='{"x-max-priority": 3}')
    with pytest.raises(OptionError, match="x-max-priority is a number from 0 to 255"):
        store.append(pa.table({"body": ["x"]}), queue="q", queueArguments={"x-max-priority": 300})
    for version in (3, True, "2"):
        with pytest.raises(OptionError, match="x-queue-version is 1 or 2"):
            store.append(pa.table({"body": ["x"]}), queue="q", queueArguments={"x-queue-version": version})
    for kind in ("quorum", "stream"):
        with pytest.raises(OptionError, match=f"no {kind} queue is written; a classic one is"):
            store.append(pa.table({"body": ["x"]}), queue="q", queueArguments={"x-queue-type": kind})
    # Columns of a read that a store assigns itself are ignored; Kafka's names are accepted.
    store.append(golden_like(), queue="q")
    assert golden.table(Path(store.path))["body"].to_pylist() == [b"v"]


def golden_like() -> pa.Table:
    return pa.table({"value": ["v"], "sequenceId": [77], "guid": ["00"], "store": ["s"], "acked": [True]})


def test_definitions(tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(
        pa.table({"body": ["x"]}), queue="p", queueArguments='{"x-max-priority": 3, "x-overflow": "drop-head"}'
    )
    store.append(pa.table({"body": ["x"], "queue": ["plain"]}))
    store.append(pa.table({"body": ["x"]}), queue="p")
    found = json.loads((tmp_path / "vhosts" / "definitions.json").read_text())
    assert found["vhosts"] == [{"name": "/"}]
    assert {queue["name"]: queue["arguments"] for queue in found["queues"]} == {
        "p": {"x-max-priority": 3, "x-overflow": "drop-head"}, "plain": {},
    }  # fmt: skip
    assert all(queue["durable"] and queue["vhost"] == "/" for queue in found["queues"])


@pytest.mark.parametrize("queue", ["v2.q", "new"])
def test_a_store_with_a_queue_of_version_2_is_not_opened_for_a_queue(queue: str, tmp_path: Path) -> None:
    """Whichever queue is requested."""
    path = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    before = fingerprint(path)
    message = "is a queue of version 2; no queue of a store that has one is opened to publish and fetch: read it"
    with open_store(str(path)) as store, pytest.raises(UnsupportedFormatError, match=message):
        store.queue(queue)
    assert {name: entry[1:] for name, entry in fingerprint(path).items() if not name.startswith(".mqstore")} == {
        name: entry[1:] for name, entry in before.items()
    }


def test_what_a_dead_writer_staged_is_swept_by_the_next(tmp_path: Path) -> None:
    """By a job and by an open queue; the staged files of a living writer stay."""
    for number, write in enumerate(
        (lambda store: store.append(rows(3, 2)), lambda store: store.queue("a").close())
    ):  # fmt: skip
        store = small(tmp_path / str(number))
        store.append(rows(30))
        living, dead = store.begin_job(), store.begin_job()
        dead.stage(iter(rows(10).to_batches()))
        part = living.stage(iter(rows(5, 4).to_batches()))
        staging = Path(store.path) / ".mqstore" / "staging"
        owner = json.loads((staging / dead.job / "owner.json").read_text())
        (staging / dead.job / "owner.json").write_text(json.dumps({**owner, "start": -1}))
        write(store)
        assert [folder.name for folder in staging.iterdir()] == [living.job]
        assert living.commit([part]) == 5
        assert not staging.exists()


def test_a_job_without_rows_changes_nothing(tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(rows(20))
    before = {name: entry[1:] for name, entry in fingerprint(tmp_path).items()}
    assert store.append(rows(3).slice(0, 0)) == 0
    assert {name: entry[1:] for name, entry in fingerprint(tmp_path).items()} == before


def test_an_abort_after_the_commit_point_keeps_what_is_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fails halfway, the job is committed, its staged files stay, and the next write finishes it."""
    store = small(tmp_path)
    first, second = rows(20, 1), rows(40, 2)
    store.append(first)
    real, calls = system.rename, []

    def failing(source: str, target: str) -> None:
        if "msg_store_persistent" in target:
            calls.append(target)
            if len(calls) > 1:
                raise OSError(28, "No space left on device", target)
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(system, "rename", failing)
        with pytest.raises(MqStoreError, match=r"the job is committed but not finished .* the next write") as caught:
            store.append(second)
    assert "\n" not in str(caught.value)
    check(store, first)
    store.append(rows(3, 3))
    check(store, pa.concat_tables([first, second, rows(3, 3)]))


def test_a_closed_store_answers_nothing(tmp_path: Path) -> None:
    store = small(tmp_path)
    store.append(rows(3))
    store.close()
    for ask in (
        store.snapshot, store.begin_job, store.definitions, lambda: store.append(rows(1)), lambda: store.queue("a"),
        lambda: store.view("queues"), lambda: store.view_schema("queues"),
    ):  # fmt: skip
        with pytest.raises(StoreClosedError, match=f"^StoreClosedError: {store.path}: the store was closed"):
            ask()


def test_a_running_node_is_left_alone(tmp_path: Path) -> None:
    node = tmp_path / "rabbit@host"
    path = golden.unpack("s7_gc_clean", node / "msg_stores") / golden.DEFAULT_VHOST
    held = path / "msg_store_persistent" / "0.rdq"
    script = "import sys; held = open(sys.argv[1], 'ab'); print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with open_store(str(path)) as store, pytest.raises(StoreLockedError, match=f"locked by process {process.pid}"):
            store.append(pa.table({"body": ["x"]}), queue="gc.q")
        (tmp_path / "rabbit@host.pid").write_text(f"{process.pid}\n")
        with open_store(str(path)) as store, pytest.raises(StoreLockedError, match="locked by a running node"):
            store.append(pa.table({"body": ["x"]}), queue="gc.q")
    finally:
        process.communicate(b"")
    with open_store(str(path)) as store:
        assert store.append(pa.table({"body": ["x"]}), queue="gc.q") == 1


def test_a_new_store_is_made_by_its_first_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFoundError, match="is not a RabbitMQ vhost directory"):
        open_store(str(tmp_path))
    store = open_store(str(tmp_path / "new"), {"vhost": "é"})
    with pytest.raises(StoreNotFoundError, match="there is no store yet; write to it first"):
        store.snapshot()
    with pytest.raises(RowError):
        store.append(pa.table({"body": pa.array([None], pa.string())}), queue="q")
    assert not (tmp_path / "new").exists()
    store.append(pa.table({"body": ["x"]}), queue="q")
    assert (tmp_path / "new" / ".config").read_bytes() == paths.encode_config(2048)
    assert [d.directory for d in store.snapshot().directories] == [paths.queue_directory("é".encode(), b"q")]
    assert open_store(str(tmp_path / "new"), {"vhost": "é"}).vhost == "é"
    with pytest.raises(OptionError, match="is the store of the vhost é"):
        open_store(str(tmp_path / "new"), {"vhost": "/"})


def test_a_new_store_whose_first_files_are_there(tmp_path: Path) -> None:
    """A first write that stopped after .vhost or .config: readers see no store yet, and the next write finishes it."""
    for count, moved in enumerate((paths.VHOST_FILE, paths.CONFIG_FILE)):
        folder = tmp_path / str(count)
        stop_after_moving(folder, moved)
        assert {path.name for path in folder.iterdir()} <= {".mqstore", paths.VHOST_FILE, paths.CONFIG_FILE}
        with open_store(str(folder)) as store:
            with pytest.raises(StoreNotFoundError, match="no store yet"):
                store.snapshot()
            store.append(rows(5, 2))
        assert golden.table(folder).num_rows == 25


def test_a_new_store_that_another_write_made_meanwhile(tmp_path: Path) -> None:
    """The job's staged segments have another entry count than the store has by now: nothing is written."""
    folder = tmp_path / "v"
    with open_store(str(folder), {"queue_index_segment_entry_count": 64}) as mine:
        job = mine.begin_job(rows(10).schema.names)
        part = job.stage(iter(rows(10).to_batches()))
        with open_store(str(folder), {"queue_index_segment_entry_count": 32}) as other:
            other.append(rows(20))
        with pytest.raises(MqStoreError, match="32 entries a segment; nothing was written"):
            job.commit([part])
        job.abort()
    assert golden.table(folder).num_rows == 20


def test_an_aborted_job_leaves_the_folders_that_it_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "new"):
        with open_store(str(tmp_path / folder)) as store:
            store.begin_job(rows(10).schema.names).abort()
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_an_unfinished_job_decides_the_segments_of_the_next(tmp_path: Path) -> None:
    """The message store exists and .config does not yet: the next job is staged for what the first one creates."""
    folder = tmp_path / "v"
    stop_after_moving(folder, paths.CONFIG_FILE, {"queue_index_segment_entry_count": 16})
    (folder / paths.CONFIG_FILE).rename(next((folder / ".mqstore" / "staging").glob("*")) / "new.config")
    (folder / paths.PERSISTENT_FOLDER).mkdir()
    with open_store(str(folder)) as store:
        store.append(rows(40, 2))
        assert store.segment_entry_count == 16
    assert golden.table(folder).num_rows == 60


def stop_after_moving(folder: Path, moved: str, options: dict[str, Any] | None = None) -> None:
    """Writes 20 rows to a new store in a process that dies once it has put `moved` in place."""
    rename = system.rename

    def last(source: str, target: str) -> None:
        rename(source, target)
        if target == f"{folder}/{moved}":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, open_store(str(folder), options or {}) as store:
        patch.setattr(system, "rename", last)
        with pytest.raises(KeyboardInterrupt):
            store.append(rows(20))


@pytest.mark.parametrize(("count", "warned"), [(3, False), (4, True)])
def test_more_rows_than_the_queue_may_have(tmp_path: Path, count: int, warned: bool) -> None:
    with open_store(str(tmp_path / "v")) as store:
        job = store.begin_job(["body"], queue="q", queueArguments={"x-max-length": 3})
        job.write(iter(pa.table({"body": ["a"] * count}).to_batches()))
    texts = [text for text in job.warnings if "queue q has an x-max-length of 3; a node drops its oldest" in text]
    assert len(texts) == warned
