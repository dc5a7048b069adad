"""Rows follow the types that topics.json states, also in a process and with a kept verdict from before its change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.rocketmq.recovery import directory_cache, recovery_cache, verdict_file
from storage_core.store import ScanRequest, Store
from tests.golden import archive
from tests.reference.served import Row, place

NEVER_SETTLED, AT_ONCE = 10**18, -(10**18)


def forget() -> None:
    for cache in (directory_cache._cache, directory_cache._stated, recovery_cache._cache):
        cache.clear()


@pytest.fixture(autouse=True)
def _settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store has settled, and every walk is worth keeping."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(recovery_cache, "WORTH_KEEPING_S", -1)
    for module in (directory_cache, verdict_file):
        monkeypatch.setattr(module, "SETTLED_NS", AT_ONCE)
    forget()


def unlisted_batches(tmp_path: Path) -> Path:
    """A killed broker's store without batch queues: its next start makes those that topics.json asks for."""
    (name,) = [name for name in archive.names("rocketmq/batched") if "5.3.3" in name][:1]
    directory = archive.unpack(name, tmp_path, "rocketmq/batched")
    shutil.rmtree(directory / "batchconsumequeue")
    (directory / "abort").write_text("1")
    (directory / "checkpoint").unlink(missing_ok=True)
    return directory


def compacted(tmp_path: Path) -> Path:
    (name,) = archive.names("rocketmq/compacted")[:1]
    return archive.unpack(name, tmp_path, "rocketmq/compacted")


def rows(store: Store) -> list[Row]:
    return sorted((row for batch in store.snapshot().read(ScanRequest()) for row in batch.to_pylist()), key=place)


def fresh_rows(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The rows of a process that keeps nothing."""
    forget()
    with monkeypatch.context() as patch, open_store(str(directory), recovery="5.x") as store:
        patch.setenv("XDG_CACHE_HOME", "/dev/null")
        found = rows(store)
    forget()
    return found


def of_types(
    directory: Path, kind: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[list[Row]]]:
    """The texts of topics.json with either type of its topics, and the rows of the store with each."""
    topics = directory / "config" / "topics.json"
    texts = [text := topics.read_text(), text.replace(kind, other)]
    expected = []
    for text in texts:
        topics.write_text(text)
        expected.append(fresh_rows(directory, monkeypatch))
    assert expected[0] != expected[1]
    return texts, expected


MAKERS = {"BatchCQ": (unlisted_batches, "SimpleCQ"), "COMPACTION": (compacted, "DELETE")}


@pytest.mark.parametrize("how", ["the same process", "the next process"])
@pytest.mark.parametrize("kind", MAKERS)
def test_another_type_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str) -> None:
    make: Callable[[Path], Path]
    make, other = MAKERS[kind]
    directory = make(tmp_path)
    topics = directory / "config" / "topics.json"
    texts, expected = of_types(directory, kind, other, monkeypatch)
    with open_store(str(directory), recovery="5.x") as store:
        for number in (1, 0, 1):
            topics.write_text(texts[number])
            if how == "the next process":
                forget()
            for _ in range(3):
                assert rows(store) == expected[number]


@pytest.mark.parametrize("name", archive.names("rocketmq/compacted"))
def test_a_running_stream_sees_another_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Also if nothing else changes, after a clean stop and while a broker seems to run."""
    directory = archive.unpack(name, tmp_path, "rocketmq/compacted")
    topics = directory / "config" / "topics.json"
    texts, expected = of_types(directory, "COMPACTION", "DELETE", monkeypatch)
    with open_store(str(directory), recovery="5.x") as store:
        tail = store.follow()
        for number in (1, 0, 1):
            topics.write_text(texts[number])
            snapshot = tail.look()
            plan = snapshot.plan_ranges(ScanRequest(), snapshot.positions)
            found = [row for part in plan for batch in part.read() for row in batch.to_pylist()]
            assert sorted(found, key=place) == expected[number]
        assert tail.look() is tail.look()
        tail.close()


def test_unchanged_types_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(compacted(tmp_path))
    found = directory_cache.stated_topics(root)
    assert found.compacted
    monkeypatch.setattr(directory_cache, "compacted_topics", None)
    assert directory_cache.stated_topics(root) is found


def test_types_stated_a_moment_ago_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one clock tick have the same stamp."""
    root = str(compacted(tmp_path))
    monkeypatch.setattr(directory_cache, "SETTLED_NS", NEVER_SETTLED)
    assert directory_cache.stated_topics(root).compacted
    monkeypatch.setattr(directory_cache, "compacted_topics", lambda _: frozenset())
    assert not directory_cache.stated_topics(root).compacted
