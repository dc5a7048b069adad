"""Copies that `mqstore copy` rejects, and all other writes to a URI: one line states what to do; nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from storage_core import copy_store, open_store
from storage_core.errors import (
    MqStoreError,
    StorageError,
    StoreLockedError,
    StoreNotFoundError,
)
from storage_core.files import system
from storage_core.files.lock import FileLock
from storage_core.files.remote.back_end import Refused
from tests.command_line.calls import run
from tests.golden import archive
from tests.support.copied_stores import CutError, stop_after
from tests.support.memory_bucket import Bucket

URI, BELOW = "memory://backups/a b/%LMQ% ü", "a b/%LMQ% ü/"


def test_what_is_refused_is_one_line_and_changes_nothing(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    bucket.add("whole/x", b"1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    bucket.add_folder(store, "good")
    refused = {
        (str(store), "memory://backups/whole"): "is not empty, such as x; copy to a new folder",
        (str(store), str(tmp_path / "new")): "one of the two must be a URI",
        ("memory://backups/good", "memory://backups/new"): "give a directory as TARGET",
        (str(tmp_path / "none"), "memory://backups/new"): "there is no such directory",
        ("memory://backups/none", str(tmp_path / "new")): "there is nothing at this address",
        ("memory://backups/good", str(tmp_path / "full")): "is not empty; copy to a new directory",
        ("memory://backups/good", str(tmp_path / "file")): "is a file; copy to a new directory",
        (str(store), "ftp://host/x"): "reads local directories",
        (str(tmp_path / "full"), "memory://backups/new"): "no store lies here",
    }
    objects = dict(bucket.objects)
    for (source, target), message in refused.items():
        done = run("copy", source, target, code=2)
        (line,) = done.stderr.splitlines()
        assert message in line, line
    assert bucket.objects == objects
    assert not (tmp_path / "new").exists()
    assert os.listdir(tmp_path / "full") == ["mine"]


@pytest.mark.parametrize(("kind", "reason"), [
    ("pipe", "it is a pipe, a socket or a device, which no copy can hold; remove it"),
    ("dead", "it is a link to nothing, which no copy can hold; remove it, or mend it"),
    ("itself", "it is a link to nothing, which no copy can hold; remove it, or mend it"),
    ("around", "it is a link to a folder that it lies in, which no copy can hold; remove it"),
])  # fmt: skip
def test_what_no_copy_can_hold_is_named(bucket: Bucket, store: Path, tmp_path: Path, kind: str, reason: str) -> None:
    """A copy would wait for a pipe's writer, leave a dead link out, and go around in a circle forty times."""
    odd = store / "config" / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to({"dead": "/nowhere/x", "itself": "odd", "around": ".."}[kind])
    if kind == "pipe":
        listed = {each.name: each.is_special for each in system.entries(str(odd.parent))}
        assert [name for name, is_special in listed.items() if is_special] == ["odd"]
    for command in (("copy", store, URI), ("repair", store, "--to", tmp_path / "mended")):
        (line,) = run(*command, code=2).stderr.splitlines()
        assert line == f"mqstore: {odd}: {reason}", line


def test_no_copy_while_a_broker_runs(bucket: Bucket, store: Path) -> None:
    (store / "lock").touch()
    with FileLock(str(store / "lock"), 0, "the broker"):
        done = run("copy", store, URI, code=2)
    assert "is locked by a running broker; stop it" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not bucket.objects
    with FileLock(str(store / "lock"), 0, "the broker"), pytest.raises(StoreLockedError):
        copy_store(str(store), URI)


def test_no_copy_onto_another_unfinished_one(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(archive.unpack("shop-4.9.3", tmp_path / "shop"), other)
    bucket.fault = stop_after(3, "put")
    with pytest.raises(CutError):
        copy_store(str(other), URI)
    bucket.fault = lambda kind, path: None
    with pytest.raises(MqStoreError, match=f"has an unfinished copy of {other} of host"):
        copy_store(str(store), URI)
    bucket.add_folder(store, "good")
    bucket.add_folder(other, "better")
    bucket.fault = stop_after(3, "get")
    with pytest.raises(CutError):
        copy_store("memory://backups/good", str(tmp_path / "down"))
    bucket.fault = lambda kind, path: None
    with pytest.raises(MqStoreError, match="has an unfinished copy of memory://backups/good"):
        copy_store("memory://backups/better", str(tmp_path / "down"))


def test_no_copy_where_another_note_lies(bucket: Bucket, store: Path) -> None:
    here = {"source": str(store), "host": os.uname().nodename}
    for note in ("{", "[]", json.dumps(here), json.dumps({**here, "files": 5}), json.dumps({**here, "files": ["a"]})):
        bucket.add(BELOW + ".mqstore/copy.json", note.encode())
        (line,) = run("copy", store, URI, code=2).stderr.splitlines()
        assert line.endswith("/.mqstore/copy.json: it is not a note of a copy; copy to a new folder"), line


def test_an_object_cannot_lead_out_of_the_directory(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    bucket.add_folder(store, "bad")
    bucket.add("bad/../../out", b"x")
    with pytest.raises(MqStoreError, match=r"has a part '\.\.'"):
        copy_store("memory://backups/bad", str(tmp_path / "down"))


def test_a_right_that_is_missing_is_one_line(bucket: Bucket, store: Path) -> None:
    def refuse(kind: str, path: str) -> None:
        if kind == "put":
            raise Refused("AccessDenied: the right to write is missing")

    bucket.fault = refuse
    with pytest.raises(StorageError, match=r"copy.json: writing it: AccessDenied"):
        copy_store(str(store), URI)


def test_every_other_write_names_the_copy(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    bucket.add_folder(store, "good")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"topic": "a", "body": "x"}) + "\n")
    uri = "memory://backups/good"
    with open_store(uri) as opened:
        topic = opened.queues()[0].topic
    for call in (
        ["import", rows, uri],
        ["repair", uri, "--in-place"],
        ["repair", store, "--to", "memory://backups/new"],
        ["offsets", "reset", uri, "--group", "g", "--topic", topic, "--to", "earliest", "--apply", "--new-group"],
        ["export", store, "memory://backups/new.jsonl"],
        ["report", store, "-o", "memory://backups/new.html"],
    ):
        done = run(*call, code=2)
        assert done.stderr.count("\n") == 1, done.stderr
        assert "`mqstore copy`" in done.stderr, (call, done.stderr)


@pytest.mark.parametrize("engine", ["rocketmq", "rabbitmq", None])
def test_no_copy_of_a_store_that_is_not_there(bucket: Bucket, tmp_path: Path, engine: str | None) -> None:
    """An empty directory may be a disk that is not mounted: its copy would look like a backup."""
    (tmp_path / "empty").mkdir()
    for source in ("empty", "none"):
        with pytest.raises(StoreNotFoundError):
            copy_store(tmp_path / source, URI, engine)
    assert not bucket.objects
    bucket.add("other/file", b"x")
    with pytest.raises(StoreNotFoundError):
        copy_store("memory://backups/nothing", tmp_path / "down", engine)
    assert not (tmp_path / "down").exists()
