"""`recovery=none`: where queues end is bisected, and is where a full look finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core import open_store
from tests.golden import archive

NAMES = [name for name in archive.names() if not name.startswith("damaged")]


@pytest.mark.parametrize("name", NAMES)
def test_queues_end_where_their_entries_do(name: str, tmp_path: Path) -> None:
    directory = archive.unpack(name, tmp_path)
    expected = {}
    for folder in directory.glob("consumequeue/*/*"):
        stops = [
            int(path.name) // 20 + entry + 1
            for path in folder.iterdir()
            for data in [path.read_bytes()]
            for entry, size in enumerate(data[at + 8 : at + 12] for at in range(0, len(data), 20))
            if any(size)
        ]
        if stops:
            expected[folder.parent.name, int(folder.name)] = max(stops)
    with open_store(str(directory), recovery="none") as store:
        assert {(queue.topic, queue.queue_id): queue.stop for queue in store.queues()} == expected
