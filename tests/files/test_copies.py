"""`mqstore copy` to and from a bucket in memory: a whole store or none, resumed copies, one-line errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_core import copy_store, find_stores, open_store
from storage_core.errors import (
    CorruptionError,
    MqStoreError,
    StoreChangedError,
    StoreNotFoundError,
)
from storage_core.files import system
from storage_core.files.remote import registry
from storage_core.files.remote.back_end import Unavailable
from storage_core.transfer import download
from tests.command_line.calls import run
from tests.rabbitmq import golden
from tests.support.copied_stores import CutError, contents, served_rows, stop_after
from tests.support.memory_bucket import Bucket

URI, BELOW = "memory://backups/a b/%LMQ% ü", "a b/%LMQ% ü/"


@pytest.mark.usefixtures("small_pieces")
def test_up_and_down_again_is_the_same_store(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    before = contents(store)
    up = copy_store(str(store), URI)
    assert bucket.objects.keys() >= {BELOW + name for name, found in before.items() if found is not None}
    down = copy_store(URI, str(tmp_path / "down"))
    assert contents(tmp_path / "down") == before == contents(store)
    assert (up.files, up.bytes, up.checked) == (down.files, down.bytes, "sizes")
    assert down.checked == "checksums"
    assert not (tmp_path / "down" / ".mqstore").exists()
    assert served_rows(URI) == served_rows(str(tmp_path / "down")) == served_rows(str(store))


def test_a_new_copy_is_seen_at_once(bucket: Bucket, store: Path) -> None:
    """Even by a process that listed the parent folder a moment ago."""
    copy_store(str(store), "memory://backups/all/one")
    assert find_stores("memory://backups/all") == ["memory://backups/all/one"]
    copy_store(str(store), "memory://backups/all/two")
    with open_store("memory://backups/all/two") as opened:
        assert opened.queues()


def test_the_log_goes_first_and_the_manifest_last(bucket: Bucket, store: Path) -> None:
    copy_store(str(store), URI)
    sent = [path.removeprefix(BELOW) for kind, path, *_ in bucket.asked if kind == "put"]
    assert sent[0] == ".mqstore/copy.json"
    assert sent[-1] == ".mqstore/manifest.json"
    is_log = [name.startswith("commitlog/") for name in sent[1:-1]]
    assert is_log == sorted(is_log, reverse=True)
    assert any(is_log)


def test_a_vhost_goes_up_and_down(bucket: Bucket, tmp_path: Path) -> None:
    vhost = golden.unpack("s1_mixed_clean_idle", tmp_path / "made") / golden.DEFAULT_VHOST
    before = contents(vhost)
    copy_store(str(vhost), URI)
    copy_store(URI, str(tmp_path / "down"))
    assert contents(tmp_path / "down") == before
    assert served_rows(str(tmp_path / "down")) == served_rows(str(vhost)) != []


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("count", [0, 1, 20, 45])
def test_a_stopped_download_ends_whole_when_run_again(
    bucket: Bucket, store: Path, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "THREADS", 2)
    before, target = contents(store), str(tmp_path / "down")
    bucket.add_folder(store, BELOW.rstrip("/"))
    bucket.fault = stop_after(count, "get")
    with pytest.raises(CutError):
        copy_store(URI, target)
    bucket.fault = lambda kind, path: None
    for ask in (lambda: open_store(target), lambda: find_stores(target), lambda: open_store(target, "rocketmq")):
        with pytest.raises(StoreNotFoundError, match=r"a copy of memory://.* not finished .*mqstore copy memory://"):
            ask()
    gets = bucket.count("get")
    done = copy_store(URI, target)
    assert done.checked == "sizes"
    assert done.resumed_bytes > 0 or count < 20
    pieces = sum(-(-max(found.size, 1) // (64 << 10)) for found in bucket.objects.values() if found.size)
    assert bucket.count("get") - gets <= pieces - max(count - 10, 0)
    found = contents(tmp_path / "down")
    assert {name: data[0] for name, data in found.items() if data} == {
        name: data[0] for name, data in before.items() if data
    }


def test_times_of_objects_rise_with_the_names(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    for path in sorted(store.rglob("*"), reverse=True):
        if path.is_file():
            bucket.add(BELOW + str(path.relative_to(store)), path.read_bytes())
    copy_store(URI, str(tmp_path / "down"))
    times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "down" / "commitlog").iterdir())]
    assert times == sorted(times)
    assert len(times) > 1


def test_an_object_that_was_replaced_between_two_runs_is_copied_again(
    bucket: Bucket, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "THREADS", 1)
    bucket.add_folder(store, BELOW.rstrip("/"))
    logs = sorted((store / "commitlog").iterdir())
    bucket.fault = stop_after(3, "get")
    with pytest.raises(CutError):
        copy_store(URI, str(tmp_path / "down"))
    bucket.fault = lambda kind, path: None
    registry.forget_all()
    blank = bytes(logs[0].stat().st_size)
    bucket.add(BELOW + f"commitlog/{logs[0].name}", blank)
    copy_store(URI, str(tmp_path / "down"))
    assert (tmp_path / "down" / "commitlog" / logs[0].name).read_bytes() == blank


def test_what_is_gone_from_the_source_between_two_runs_is_not_in_the_copy(
    bucket: Bucket, store: Path, tmp_path: Path
) -> None:
    """As where a backup is refreshed while a copy of it is interrupted: expired files leave it."""
    bucket.add_folder(store, BELOW.rstrip("/"))
    old = {path for path in bucket.objects if "/consumequeue/" in path or path.endswith("commitlog/" + "0" * 20)}
    bucket.fault = stop_after(40, "get")
    with pytest.raises(CutError):
        copy_store(URI, str(tmp_path / "down"))
    bucket.fault = lambda kind, path: None
    registry.forget_all()
    for path in old:
        del bucket.objects[path]
    copy_store(URI, str(tmp_path / "down"))
    found = {BELOW + name for name, data in contents(tmp_path / "down").items() if data is not None}
    assert found == {path for path in bucket.objects if not path.endswith("/lock")}
    assert not (tmp_path / "down" / "consumequeue").exists()


def test_bytes_on_their_way_at_an_interruption_are_not_in_the_copy_of_a_later_version(
    bucket: Bucket, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piece was written, and not noted yet: where the later object has zeros, its bytes would show."""
    name = f"commitlog/{min(path.name for path in (store / 'commitlog').iterdir())}"
    bucket.add_folder(store, BELOW.rstrip("/"))

    def stopped_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
            raise CutError

    fsync = system.fsync
    with monkeypatch.context() as patched:
        patched.setattr(system, "fsync", stopped_fsync)
        with pytest.raises(CutError):
            copy_store(URI, str(tmp_path / "down"))
    registry.forget_all()
    blank = bytes((store / name).stat().st_size)
    bucket.add(BELOW + name, blank)
    copy_store(URI, str(tmp_path / "down"))
    assert (tmp_path / "down" / name).read_bytes() == blank


@pytest.mark.parametrize("stop_at", ["copying", "commitlog", "index"])
def test_a_download_that_stops_while_it_moves_its_files_ends_whole(
    bucket: Bucket, store: Path, tmp_path: Path, stop_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, target = contents(store), tmp_path / "down"
    copy_store(str(store), URI)
    rename, drop = system.rename, download.drop_tree

    def stopped_rename(source: str, to: str) -> None:
        if os.path.basename(to) == stop_at and ".mqstore" not in to:
            raise CutError
        rename(source, to)

    def stopped_drop(folder: str) -> None:
        if stop_at == "copying":
            raise CutError
        drop(folder)

    with monkeypatch.context() as patched:
        patched.setattr(system, "rename", stopped_rename)
        patched.setattr(download, "drop_tree", stopped_drop)
        with pytest.raises(CutError):
            copy_store(URI, str(target))
    with pytest.raises(StoreNotFoundError, match="not finished"):
        open_store(str(target))
    copy_store(URI, str(target))
    assert contents(target) == before
    assert not (target / ".mqstore").exists()


@pytest.mark.parametrize("count", [1, 2, 12, 1000])
def test_a_stopped_upload_is_no_store_and_ends_whole_when_run_again(bucket: Bucket, store: Path, count: int) -> None:
    objects = len([found for found in contents(store).values() if found])
    count = min(count, objects + 1)  # the last one: only the manifest is missing
    bucket.fault = stop_after(count, "put")
    with pytest.raises(CutError):
        copy_store(str(store), URI)
    bucket.fault = lambda kind, path: None
    registry.forget_all()
    for ask in (lambda: open_store(URI), lambda: copy_store(URI, str(store.parent / "down"))):
        with pytest.raises(StoreNotFoundError, match=f"a copy of {store} that was not finished lies here"):
            ask()
    assert not (store.parent / "down").exists()
    there = {path for path in bucket.objects if ".mqstore" not in path}
    bucket.asked.clear()
    done = copy_store(str(store), URI)
    again = {path for kind, path, *_ in bucket.asked if kind == "put" and ".mqstore" not in path}
    assert not again & there
    assert done.resumed_bytes == sum(bucket.objects[path].size for path in there)
    registry.forget_all()
    assert served_rows(URI) == served_rows(str(store))
    copy_store(URI, str(store.parent / "down"))
    assert contents(store.parent / "down") == contents(store)


def test_what_changed_between_two_runs_goes_up_again(bucket: Bucket, store: Path) -> None:
    bucket.fault = stop_after(12, "put")
    with pytest.raises(CutError):
        copy_store(str(store), URI)
    bucket.fault = lambda kind, path: None
    log = min((store / "commitlog").iterdir())
    log.write_bytes(bytes(log.stat().st_size))
    copy_store(str(store), URI)
    content = bucket.content[BELOW + f"commitlog/{log.name}"]
    assert isinstance(content, bytes)
    assert not any(content)


def test_a_file_that_changes_while_it_goes_up_is_a_named_error(bucket: Bucket, store: Path) -> None:
    log = max((store / "commitlog").iterdir())

    def change(kind: str, path: str) -> None:
        if kind == "put" and path.endswith("checkpoint"):
            os.utime(log, ns=(1, 1))

    bucket.fault = change
    with pytest.raises(StoreChangedError, match=f"{log}: it changed while it was copied"):
        copy_store(str(store), URI)
    assert BELOW + ".mqstore/manifest.json" not in bucket.objects


@pytest.mark.parametrize("how", ["byte", "length", "missing", "more"])
def test_a_copy_that_is_not_as_its_manifest_is_no_store(bucket: Bucket, store: Path, tmp_path: Path, how: str) -> None:
    copy_store(str(store), URI)
    path = next(path for path in sorted(bucket.objects) if "/commitlog/" in path)
    data = bucket.content[path]
    assert isinstance(data, bytes)
    if how == "missing":
        del bucket.objects[path]
    elif how == "more":
        bucket.add(BELOW + "consumequeue/new/0/1", b"x")
    else:
        bucket.add(path, data[:-1] if how == "length" else data[:500] + bytes([data[500] ^ 1]) + data[501:])
    registry.forget_all()
    with pytest.raises(CorruptionError, match=r"manifest") as caught:
        copy_store(URI, str(tmp_path / "down"))
    assert str(caught.value).startswith("CorruptionError: memory://backups/a b/")
    with pytest.raises(StoreNotFoundError):
        open_store(str(tmp_path / "down"))


@pytest.mark.parametrize("name", ["../../../../outside", "a/../../../../outside", "/", "a//b", "a/.", "\0", ""])
def test_no_folder_of_a_manifest_is_made_outside_the_copy(
    bucket: Bucket, store: Path, tmp_path: Path, name: str
) -> None:
    copy_store(str(store), URI)
    path = BELOW + ".mqstore/manifest.json"
    data = bucket.content[path]
    assert isinstance(data, bytes)
    bucket.add(path, json.dumps(json.loads(data) | {"folders": [name]}).encode())
    registry.forget_all()
    before = set(tmp_path.rglob("*"))
    with pytest.raises(MqStoreError, match=r"manifest\.json: it is not a manifest; copy the store again"):
        copy_store(URI, str(tmp_path / "a" / "b" / "down"))
    assert not [path for path in set(tmp_path.rglob("*")) - before if path.name == "outside"]


def test_failed_requests_are_retried(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    failed: set[tuple[str, str]] = set()

    def once(kind: str, path: str) -> None:
        if (kind, path) not in failed:
            failed.add((kind, path))
            raise Unavailable("503")

    bucket.fault = once
    copy_store(str(store), URI)
    copy_store(URI, str(tmp_path / "down"))
    assert contents(tmp_path / "down") == contents(store)


def test_a_manifest_whose_answer_was_lost_is_ours(bucket: Bucket, store: Path) -> None:
    put, lost = bucket.put, []

    def answered(path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        put(path, source, size, only_new)
        if path.endswith("manifest.json") and not lost:
            lost.append(path)
            raise Unavailable("the connection was reset")

    bucket.put = answered  # type: ignore[method-assign]
    copy_store(str(store), URI)
    assert lost


def test_a_second_copy_that_ended_first_wins(bucket: Bucket, store: Path) -> None:
    def other(kind: str, path: str) -> None:
        if kind == "put" and path.endswith("manifest.json"):
            bucket.add(path, b"{}")

    bucket.fault = other
    with pytest.raises(MqStoreError, match="another copy was finished there meanwhile"):
        copy_store(str(store), URI)


def test_zeros_become_holes(bucket: Bucket, tmp_path: Path, store: Path) -> None:
    bucket.add_folder(store, "good")
    name = max(path.name for path in (store / "commitlog").iterdir())
    bucket.add(f"good/commitlog/{name}", b"\1" * 70_000 + bytes(20 << 20) + b"\2")
    copy_store("memory://backups/good", str(tmp_path / "down"))
    copied = tmp_path / "down" / "commitlog" / name
    assert copied.read_bytes() == b"\1" * 70_000 + bytes(20 << 20) + b"\2"
    assert copied.stat().st_blocks * 512 < 1 << 20


def test_a_log_elsewhere_goes_into_one_folder(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    before = contents(store)
    (store / "commitlog").rename(tmp_path / "log")
    copy_store(str(store), URI, commitLogPath=str(tmp_path / "log"))
    copy_store(URI, str(tmp_path / "down"))
    assert contents(tmp_path / "down") == before


def test_what_the_command_prints(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    done = run("copy", store, URI, "--json")
    facts = json.loads(done.stdout)
    assert facts.keys() == {"source", "target", "engine", "files", "bytes", "resumedBytes", "checked"}
    assert (facts["source"], facts["target"], facts["engine"]) == (str(store), URI, "rocketmq")
    done = run("copy", URI, tmp_path / "down")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["copied", "files", "checked"]
    assert "checksums" in done.stdout
    assert run("verify", tmp_path / "down", code=run_code(store)).stderr == ""


def run_code(store: Path) -> int:
    """The exit code of `verify` for the original."""
    with open_store(str(store)) as opened:
        return int(any(True for _ in opened.verify()))
