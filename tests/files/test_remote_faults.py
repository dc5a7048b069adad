"""Faults between a listing and a read of a bucket: the right rows or a specific one-line error; no hang, no secret."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import (
    OptionError,
    StorageError,
    StoreChangedError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from storage_core.files.remote import registry, requests
from storage_core.files.remote.back_end import Refused, Unavailable
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.support.memory_bucket import Bucket, served

URI = "memory://backups/a b/%LMQ% ü/store"
NAME = "mixed-4.9.3"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive.unpack(NAME, tmp_path_factory.mktemp(NAME))


@pytest.fixture
def bucket(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    with served(Bucket()) as made:
        made.add_folder(directory, URI.partition("://backups/")[2])
        yield made


def rows(path: str) -> pa.Table:
    with open_store(path) as store:
        return pa.Table.from_batches(
            [batch for piece in store.snapshot().plan(ScanRequest()) for batch in piece.read()]
        )


def log_file(bucket: Bucket) -> str:
    return next(path for path in sorted(bucket.objects) if "/commitlog/" in path)


class Turns(threading.local):
    """Counts answers per thread: a thread retries its own requests, so other threads do not affect which ones fail."""

    def __init__(self) -> None:
        self.answers = 0

    def is_due(self, count: int) -> bool:
        """Counts an answer; returns whether its number is a multiple of `count`."""
        self.answers += 1
        return self.answers % count == 0


def every(count: int, answer: Exception, failed: list[str]) -> Callable[[str, str], None]:
    """Raises `answer` at every n-th request of a thread and adds its path to `failed`."""
    turns = Turns()

    def fault(kind: str, path: str) -> None:
        if turns.is_due(count):
            failed.append(path)
            raise answer

    return fault


def test_names_with_spaces_percent_and_umlauts_are_taken_as_they_stand(bucket: Bucket, directory: Path) -> None:
    assert find_stores("memory://backups/a b") == [URI]
    assert find_stores("memory://backups/a*/%LMQ%*/st?re") == [URI]
    assert rows(URI + "/").equals(rows(str(directory)))


def test_one_listing_and_no_question_for_a_single_file(bucket: Bucket) -> None:
    rows(URI)
    assert bucket.count("walk") == 1
    assert bucket.count("folder") <= 1


@pytest.mark.parametrize("answer", [Unavailable("503"), Unavailable("it was reset")])
def test_every_third_answer_fails_and_the_rows_are_right(bucket: Bucket, directory: Path, answer: Exception) -> None:
    failed: list[str] = []
    bucket.fault = every(3, answer, failed)
    assert rows(URI).equals(rows(str(directory)))
    assert failed


def test_short_answers_are_requested_again(bucket: Bucket, directory: Path) -> None:
    turns = Turns()
    bucket.cut = lambda path: 0 if turns.is_due(2) else 5
    assert rows(URI).equals(rows(str(directory)))


def at_the_first_read(path: str, change: Callable[[], None]) -> Callable[[str, str], None]:
    requested: list[str] = []

    def fault(kind: str, name: str) -> None:
        requested.append(name)
        if (kind, name) == ("get", path) and requested.count(path) == 1:
            change()

    return fault


@pytest.mark.parametrize("how", ["replaced", "shortened", "deleted"])
@pytest.mark.parametrize("when", ["before the plan", "before the read", "while it is read"])
def test_an_object_that_changes_is_a_named_error(bucket: Bucket, how: str, when: str) -> None:
    path = log_file(bucket)

    def change() -> None:
        content = bucket.content[path]
        data = content if isinstance(content, bytes) else content.read_bytes()
        if how == "deleted":
            bucket.objects.pop(path, None)
        else:
            bucket.add(path, data if how == "replaced" else data[:100])

    def read() -> None:
        with open_store(URI) as store:
            if when == "before the plan":
                change()
            plan = store.snapshot().plan(ScanRequest())
        registry.forget_all()  # as a task on another machine, which has read nothing yet
        if when == "before the read":
            change()
        if when == "while it is read":
            bucket.fault = at_the_first_read(path, change)
        for piece in plan:
            list(piece.read())

    with pytest.raises(StoreChangedError) as caught:
        read()
    text = str(caught.value)
    assert text.startswith(f"StoreChangedError: memory://backups/{path}")
    assert "\n" not in text
    assert how in text or (how, "replaced" in text) == ("shortened", True)


def test_a_refusal_is_one_line_and_is_not_retried(bucket: Bucket) -> None:
    def refuse(kind: str, path: str) -> None:
        if kind == "get":
            raise Refused("AccessDenied: the right to read is missing")

    bucket.fault = refuse
    with pytest.raises(StorageError, match="AccessDenied") as caught:
        rows(URI)
    assert "\n" not in str(caught.value)
    assert bucket.count("get") <= 2


def test_an_endless_fault_ends_in_one_line_with_the_range(bucket: Bucket) -> None:
    def stall(kind: str, path: str) -> None:
        if kind == "get":
            raise Unavailable("it timed out")

    bucket.fault = stall
    with pytest.raises(StorageError, match=r"memory://backups/a b/.*: bytes \d+ to \d+: it timed out, 6 times"):
        rows(URI)


def test_nothing_there_says_so(bucket: Bucket) -> None:
    for path in ("memory://backups/none", "memory://backups/a b/n*ne"):
        with pytest.raises(StoreNotFoundError, match=r"none|nothing matches"):
            find_stores(path)
    with pytest.raises(StoreNotFoundError):
        open_store("memory://backups/none")


@pytest.mark.parametrize("path", ["ftp://host/store", "s3:///store", "http://host/store"])
def test_another_scheme_is_one_line(path: str) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        open_store(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_marks_are_folders(bucket: Bucket, directory: Path) -> None:
    below = URI.partition("://backups/")[2]
    bucket.add(f"{below}/", b"")
    bucket.add(f"{below}/commitlog/", b"")
    bucket.add(f"{below}/consumequeue", b"")
    assert rows(URI).equals(rows(str(directory)))


def test_every_change_is_refused(bucket: Bucket) -> None:
    before = dict(bucket.objects)
    with open_store(URI) as store:
        for change in (
            lambda: store.append({"topic": ["a"], "body": [b"x"]}),
            store.repair,
            lambda: store.set_group_offsets("billing", {("orders", 0): 1}),
        ):
            with pytest.raises(UnsupportedFormatError, match=r"a b/.*writes to local directories"):
                change()
    assert bucket.objects == before


def test_a_repaired_copy_is_on_disk_and_the_bucket_stays(bucket: Bucket, directory: Path, tmp_path: Path) -> None:
    before = dict(bucket.objects)
    with open_store(URI) as store:
        store.repair(str(tmp_path / "copy"))
    with open_store(str(directory)) as store:
        store.repair(str(tmp_path / "local"))
    copied, expected = (
        {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file() and ".mqstore" not in path.parts
        }
        for name in ("copy", "local")
    )
    assert copied.keys() == expected.keys()
    assert [name for name in copied if copied[name] != expected[name]] == []
    assert rows(str(tmp_path / "copy")).num_rows == rows(str(directory)).num_rows
    assert bucket.objects == before


def test_partitions_are_read_where_nothing_was_listed(bucket: Bucket, directory: Path) -> None:
    with open_store(URI) as store:
        plan = pickle.dumps(store.snapshot().plan(ScanRequest(min_partitions=4)))
    registry.forget_all()
    bucket.asked.clear()
    read = pa.Table.from_batches([batch for piece in pickle.loads(plan) for batch in piece.read()])
    assert read.sort_by("physicalOffset").equals(rows(str(directory)).sort_by("physicalOffset"))
    assert bucket.count("walk") == bucket.count("folder") == 0


SECRETS = {"storage.accessKey": "AKIAOPENSESAME", "storage.secretKey": "xyzzy-secret", "storage.sessionToken": "tok-en"}


def test_no_secret_is_shown(bucket: Bucket) -> None:
    with open_store(URI, **SECRETS) as store:
        snapshot = store.snapshot()
        plan = snapshot.plan(ScanRequest())
        shown = [repr(each) for each in (store, snapshot, plan, plan[0].__dict__)]
    with open_store(URI, **SECRETS), pytest.raises(OptionError) as caught:
        open_store(URI, **{**SECRETS, "storage.secretKey": "another"})
    shown.append(str(caught.value))
    for wrong in ({"storage.secrtKey": "xyzzy-secret"}, {"storage.accessKey": ""}):
        with pytest.raises(OptionError) as caught:
            open_store(URI, **wrong)
        shown.append(str(caught.value))
    for secret in (*SECRETS.values(), "another"):
        assert not any(secret in text for text in shown)


FORKED = """
import os, sys, obstore
from storage_core import open_store
uri, options = "s3://nobody/store", {"storage.endpoint": "http://127.0.0.1:9", "storage.timeout": "1",
                                     "storage.accessKey": "k", "storage.secretKey": "s"}
def tried():
    try:
        open_store(uri, **options)
    except Exception as error:
        return str(error)
before = tried()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, tried().encode())
    os._exit(0)
print(before)
print(os.read(read, 4096).decode())
"""


def test_a_forked_process_says_so_and_does_not_hang(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True, env=os.environ.copy()
    )
    before, after = done.stdout.strip().splitlines()
    assert before.startswith("StorageError: s3://nobody/store: listing it: nobody listens there")
    assert "this process was forked" in after


@pytest.mark.parametrize("class_path", ["", "/nowhere/hadoop.jar"])
def test_without_libhdfs_there_is_one_line(class_path: str, tmp_path: Path) -> None:
    code = "import sys; from storage_core import open_store; open_store('hdfs://127.0.0.1:9/store')"
    environment = {
        **os.environ,
        "CLASSPATH": class_path,
        "ARROW_LIBHDFS_DIR": str(tmp_path),
        "HADOOP_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "MqStoreError: hdfs://127.0.0.1:9: reading HDFS needs Hadoop's libhdfs and its jars: set HADOOP_HOME" in last
