"""Threads that read stores of one bucket share its listings: one may list a store while another looks up a name."""

from __future__ import annotations

import threading

import pytest

from storage_core.files import system
from storage_core.files.remote import registry
from storage_core.files.remote.access import Access
from storage_core.files.remote.tree import Tree
from tests.support.memory_bucket import Bucket

URI = "memory://backups"


@pytest.fixture
def stores(bucket: Bucket) -> list[str]:
    """The URIs of three stores in a bucket, the first two of which are listed."""
    names = ["one", "two", "three"]
    for name in names:
        bucket.add(f"{name}/commitlog/{0:020d}", b"x" * 10)
    uris = [f"{URI}/{name}" for name in names]
    registry.attach(URI, Access())
    for uri in uris[:2]:
        registry.look(uri)
    return uris


def test_a_store_is_listed_while_a_name_is_looked_up(stores: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    covers = Tree.covers
    waiting = [stores[2]]

    def interrupted(tree: Tree, path: str) -> bool:
        while waiting and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=registry.look, args=[waiting.pop()])
            other.start()
            other.join()
        return covers(tree, path)

    monkeypatch.setattr(Tree, "covers", interrupted)
    assert system.stat(f"{stores[1]}/commitlog/{0:020d}").size == 10
    assert not waiting
    monkeypatch.undo()
    assert system.names(stores[2]) == ["commitlog"]
