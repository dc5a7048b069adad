"""Any file of a store in a bucket may be replaced, shortened or deleted while it is read, and folders may be lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import StoreChangedError
from storage_core.files.remote import registry
from storage_core.files.remote.back_end import Unavailable
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.memory_bucket import Bucket

EMPTY = {
    "mixed-4.9.3": ("config/empty", "index", "consumequeue/none/0", "timerwheel"),
    "s8_lazy_clean": ("queues/NONE", "msg_store_transient/none"),
}
EVERYTHING = ScanRequest()


NOT_READ_AGAIN = {("after the plan", "recovery.dets")}
"""The plan of a vhost already contains the contents of this file."""


def unpacked(name: str, folder: Path) -> Path:
    if name == "mixed-4.9.3":
        return archive.unpack(name, folder)
    return next(path for path in golden.unpack(name, folder).iterdir() if (path / "queues").is_dir())


def rows(path: str, between: Callable[[], None] = lambda: None, request: ScanRequest = EVERYTHING) -> pa.Table:
    """All rows. `between` runs after the plan is made; the read that follows knows only the plan."""
    with open_store(path) as store:
        plan = store.snapshot().plan(request)
    between()
    return pa.Table.from_batches([batch for piece in plan for batch in piece.read()])


def change(bucket: Bucket, path: str, how: str) -> None:
    content = bucket.content[path]
    data = content if isinstance(content, bytes) else content.read_bytes()
    if how == "deleted":
        del bucket.objects[path]
    else:
        bucket.add(path, bytes(len(data)) if how == "replaced" else data[: len(data) // 2])


def put(bucket: Bucket, directory: Path) -> str:
    """Copies a store into the bucket under its own name, because rows contain the name."""
    bucket.add_folder(directory, f"x/{directory.name}")
    return f"memory://b/x/{directory.name}"


@pytest.mark.parametrize("how", ["replaced", "shortened", "deleted"])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mixed-4.9.3", "/consumequeue/"),
        ("s8_lazy_clean", ".rdq"),
        ("s8_lazy_clean", ".idx"),
        ("s3_mixed_kill9", "journal.jif"),
        ("s8_lazy_clean", "recovery.dets"),
    ],
)
@pytest.mark.parametrize("when", ["after the listing", "after the plan"])
def test_every_file_that_changes_is_named_or_not_needed_any_more(
    bucket: Bucket, tmp_path: Path, name: str, part: str, how: str, when: str
) -> None:
    directory = unpacked(name, tmp_path)
    uri = put(bucket, directory)
    path = next(path for path in sorted(bucket.objects) if part in path and bucket.objects[path].size > 0)
    changed: list[str] = []
    one_at_a_time = Lock()

    def on_the_first_answer(kind: str, requested: str) -> None:
        with one_at_a_time:
            if kind != "walk" and not changed:
                changed.append(path)
                change(bucket, path, how)

    def after_the_plan() -> None:
        registry.forget_all()
        change(bucket, path, how)

    if when == "after the listing":
        bucket.fault = on_the_first_answer
    between = after_the_plan if when == "after the plan" else lambda: None
    if (when, part) in NOT_READ_AGAIN:
        assert rows(uri, between).equals(rows(str(directory)))
        return
    with pytest.raises(StoreChangedError) as caught:
        rows(uri, between)
    outcome = "deleted" if how == "deleted" else "replaced"
    assert str(caught.value).startswith(f"StoreChangedError: memory://b/{path}: the object was {outcome} while")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["replaced", "shortened", "deleted"])
def test_an_index_file_that_changes_is_named(bucket: Bucket, tmp_path: Path, how: str) -> None:
    directory = tmp_path / "store"
    with open_store(str(directory), "rocketmq") as store:
        store.append(
            {"topic": ["t"] * 300, "body": [b"x"] * 300, "key": [f"k{number}" for number in range(300)]},
            indexSlots=100, indexEntries=400,
        )  # fmt: skip
    bucket.add_folder(directory, "x/store")
    path = next(path for path in bucket.objects if "/index/" in path)
    with open_store("memory://b/x/store") as store:
        store.snapshot().plan(EVERYTHING)
        snapshot = store.snapshot()
        change(bucket, path, how)
        with pytest.raises(StoreChangedError, match=f"memory://b/{path}: the object was "):
            snapshot.plan(ScanRequest(keys=("k7",)))


@pytest.mark.parametrize("name", EMPTY)
def test_folders_lost_in_the_upload_change_nothing(bucket: Bucket, tmp_path: Path, name: str) -> None:
    """A copy made object by object has no empty folders; a disk may have many."""
    directory = unpacked(name, tmp_path)
    for empty in EMPTY[name]:
        (directory / empty).mkdir(parents=True, exist_ok=True)
    expected = rows(str(directory))
    assert rows(put(bucket, directory)).equals(expected)


def add_names(bucket: Bucket, count: int) -> None:
    """Adds objects that no reader needs to those of the store, a hundred per folder."""
    some = bucket.objects[min(bucket.objects)]
    for number in range(count):
        path = f"x/store/config/old/{number // 100}/{number}.json"
        bucket.objects[path] = some._replace(path=path)


def test_a_store_among_a_hundred_thousand_names(bucket: Bucket, tmp_path: Path) -> None:
    directory = archive.unpack("mixed-4.9.3", tmp_path)
    bucket.add_folder(directory, "x/store")
    add_names(bucket, 100_000)
    assert rows("memory://b/x/store").equals(rows(str(directory)))
    assert bucket.count("walk") == 101
    assert bucket.count("folder") == 0


def test_a_listing_that_breaks_off_is_made_again(bucket: Bucket, tmp_path: Path) -> None:
    """No name is missing, and none is duplicated."""
    directory = archive.unpack("mixed-4.9.3", tmp_path)
    bucket.add_folder(directory, "x/store")
    add_names(bucket, 2500)
    answers: list[str] = []

    def fault(kind: str, path: str) -> None:
        answers.append(kind)
        if answers.count("walk") == 2 and kind == "walk":
            raise Unavailable("503")

    bucket.fault = fault
    assert rows("memory://b/x/store").equals(rows(str(directory)))
    assert answers.count("walk") == 5


def test_a_store_that_came_since_the_last_listing_is_there_at_once(bucket: Bucket, tmp_path: Path) -> None:
    """A listing is reused for a second; if it lacks the requested store, the bucket is listed again."""
    first, second = (unpacked(name, tmp_path / name) for name in ("mixed-4.9.3", "s8_lazy_clean"))
    uri = put(bucket, first)
    assert find_stores("memory://b/*") == [uri]
    walks = bucket.count("walk")
    assert rows(put(bucket, second)).equals(rows(str(second)))
    assert bucket.count("walk") == walks + 1
