"""Several threads share what a process keeps: none sees that another one drops or replaces it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storage_core import open_store
from storage_core.rocketmq.disk.recent import Recent
from storage_core.rocketmq.index import index_cache
from storage_core.rocketmq.recovery import recovery_cache
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.rocketmq.store import RocketStore
from storage_core.store import ScanRequest
from tests.support.rocketmq_orders import orders_store

WANTED = ScanRequest(keys=("ORD-0000000007",))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return orders_store(tmp_path / "store", 40)


def found(store: Any) -> list[dict[str, Any]]:
    return [row for batch in store.snapshot().read(WANTED) for row in batch.to_pylist()]


class Dropping(Recent[Any, Any]):
    """Loses an entry as soon as it was looked up."""

    dropped = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.dropped += key in self
        return self.pop(key, default)


@pytest.mark.parametrize(("module", "name"), [(recovery_cache, "_cache"), (index_cache, "_indexes")])
def test_what_another_thread_drops_meanwhile(
    store: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """A process that reads more stores than it remembers drops what another of its threads is just comparing."""
    with open_store(str(store)) as opened:
        rows = found(opened)
        cache = Dropping(getattr(module, name))
        monkeypatch.setattr(module, name, cache)
        assert rows
        for _ in range(3):
            assert found(opened) == rows
        assert cache.dropped


def test_a_snapshot_serves_its_own_state(store: Path) -> None:
    """A thread that is slower stores its older state in the same store object."""
    with open_store(str(store)) as opened:
        assert isinstance(opened, RocketStore)
        before = opened.snapshot().served

        class Slower(RocketStore):
            """Each state that is stored is replaced at once by that of another thread."""

            @property
            def _served(self) -> ServedQueues:
                return before

            @_served.setter
            def _served(self, served: ServedQueues | None) -> None:
                del served

        with open_store(str(store)) as writer:
            writer.append({"topic": ["orders"], "key": ["ORD-0000000007"], "body": [b"new"]})
        assert b"new" in [row["body"] for row in found(Slower(str(store), {}))]
