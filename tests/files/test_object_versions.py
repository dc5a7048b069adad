"""Which version of an object is read: servers that list no ETag, and listings that are older than a plan."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.files.remote import registry
from storage_core.files.remote.back_end import Changed, Found
from storage_core.store import ScanRequest
from tests.support.memory_bucket import Bucket, served

URI = "memory://b/x/store"
BODIES = ScanRequest(columns=("body",))
SMALL = {"commitLogFileSize": 65536, "consumeQueueFileEntries": 100, "indexSlots": 100, "indexEntries": 400}


class WithoutETags(Bucket):
    """A bucket whose server lists no ETags: the time of an object must do."""

    def add(self, path: str, content: bytes | Path) -> None:
        super().add(path, content)
        self.objects[path] = self.objects[path]._replace(etag="", modified_ns=time.time_ns())

    def get(self, found: Found, start: int, stop: int) -> bytes:
        if self.objects[found.path].modified_ns != found.modified_ns:
            raise Changed
        return super().get(found, start, stop)


def put(bucket: Bucket, folder: Path, body: bytes) -> None:
    """Puts a store whose files have the same names and lengths for each body of the same length."""
    directory = folder / body.decode() / "store"
    with open_store(str(directory), "rocketmq") as store:
        store.append({"topic": ["t"] * 50, "body": [body] * 50}, **SMALL)
    bucket.add_folder(directory, "x/store")


def bodies() -> set[bytes]:
    with open_store(URI) as store:
        return {body for batch in store.snapshot().read(BODIES) for body in batch["body"].to_pylist()}


@pytest.mark.parametrize("kind", [Bucket, WithoutETags])
def test_a_replaced_object_is_read_anew(kind: type[Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.files.remote.registry.YOUNG_S", 0.0)
    with served(kind()) as bucket:
        for body in (b"one", b"two"):
            put(bucket, tmp_path, body)
            registry.look(URI, 0.0)
            assert bodies() == {body}


def test_a_listing_that_is_older_than_the_plan_is_made_again(tmp_path: Path) -> None:
    """A worker of Spark that listed the store for a view reads a later plan of another process."""
    with served(Bucket()) as bucket:
        put(bucket, tmp_path, b"one")
        with open_store(URI) as store:
            list(store.view("queues"))
        put(bucket, tmp_path, b"two")
        old = registry.attach(URI, registry.Access())
        before = dict(old._trees)
        old.look("x/store", 0.0)
        with open_store(URI) as store:
            plan = pickle.dumps(store.snapshot().plan(BODIES))
        old._trees = before
        pieces = pickle.loads(plan)
        assert {body for piece in pieces for batch in piece.read() for body in batch["body"].to_pylist()} == {b"two"}
        registry.detach(URI)
