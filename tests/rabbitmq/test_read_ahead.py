"""Large directories read two at a time: the plan, its warnings and its errors are those of reading one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError, MqStoreError
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.index import queue_directory
from storage_core.rabbitmq.read import snapshot as read_snapshot
from storage_core.store import Mode, ScanRequest
from tests.rabbitmq import golden

PERMISSIVE = ScanRequest(mode=Mode.PERMISSIVE)


@pytest.fixture(params=["one after the other", "two at a time"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Makes every directory count as large, or none."""
    two = bool(request.param == "two at a time")
    monkeypatch.setattr(read_snapshot, "LARGE_SIZE", 0 if two else 1 << 62)
    return two


def seen(store: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows and warnings."""
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        rows = [row for part in snapshot.plan(PERMISSIVE) for batch in part.read() for row in _plain(batch)]
        return rows, list(snapshot.warnings())


def _plain(batch: Any) -> list[dict[str, Any]]:
    """Rows without times, as Python cannot represent all of them."""
    names = [name for name in batch.schema.names if name not in ("timestamp", "expiresAt")]
    rows: list[dict[str, Any]] = batch.select(names).to_pylist()
    return rows


@pytest.mark.parametrize("name", golden.NAMES)
def test_plans_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for store in sorted(golden.unpack(name, tmp_path).iterdir()):
        found = []
        for size in (0, 1 << 62):
            monkeypatch.setattr(read_snapshot, "LARGE_SIZE", size)
            found.append(seen(store))
        assert found[0] == found[1]


def test_what_cannot_be_read_says_so_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    store = golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        named = list(snapshot.named().values())
        last, calls, real = named[-1].directories[-1].directory, [], queue_directory.read_queue

        def read_queue(root: str, directory: queue_directory.QueueDirectory, *args: Any) -> queue_directory.QueueFiles:
            calls.append(directory.directory)
            if directory.directory == last:
                raise CorruptionError(root, len(calls), "unreadable today")
            return real(root, directory, *args)

        monkeypatch.setattr(queue_directory, "read_queue", read_queue)
        with pytest.raises(MqStoreError, match="unreadable today"):
            snapshot.plan(PERMISSIVE)
    every = [directory.directory for queue in named for directory in queue.directories]
    assert len(every) > 2
    assert sorted(calls) == sorted([*every, last] if together else every)
    assert calls[-1] == last
