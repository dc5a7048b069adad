"""`recovery=none`: bisection finds the same ends of queues as a full scan."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.compiled import loading
from storage_core.errors import CorruptionError
from storage_core.store import Mode, ScanRequest, Store
from tests.golden import archive
from tests.support.rocketmq_files import overwrite, queue_files

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


@pytest.mark.parametrize("setting", ["never", "always"])
@pytest.mark.parametrize(
    ("physical_offset", "served"), [((1 << 63) - 1, 39), ((1 << 63) - 50, 39), (1 << 62, 20), (-(1 << 63), 39)]
)
def test_an_entry_beyond_the_log_is_reported(
    setting: str, physical_offset: int, served: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its physical offset and size, or those of the next file, add up to more than 64 bits can hold.

    From an address that the log may still reach, a pull skips what is below the next file (rocketmq.md 6.1).
    """
    monkeypatch.setattr(loading, "process", loading.Process(setting))
    with open_store(str(tmp_path / "store"), "rocketmq") as store:
        store.append(pa.table({"topic": ["o"] * 40, "queueId": pa.array([0] * 40, pa.int32()), "body": [b"x"] * 40}))
    (path,) = queue_files(tmp_path / "store")
    overwrite(path, 20 * 20, struct.pack(">qi", physical_offset, 100))
    with open_store(str(tmp_path / "store"), recovery="none") as store:
        found = {mode: _rows(store, mode) for mode in (Mode.DROPMALFORMED, Mode.PERMISSIVE)}
        assert len(found[Mode.DROPMALFORMED]) == served
        corrupt = [row for row in found[Mode.PERMISSIVE] if row["corruption"] is not None]
        if physical_offset < 0:  # before the log's first file: expired, as far as anybody can tell
            assert corrupt == []
            return
        assert [row["queueOffset"] for row in corrupt] == [20]
        with pytest.raises(CorruptionError, match="the record lies outside of the log"):
            _rows(store, Mode.FAILFAST)


def _rows(store: Store, mode: Mode) -> list[dict[str, Any]]:
    return [
        row
        for part in store.snapshot().plan(ScanRequest(mode=mode))
        for batch in part.read()
        for row in batch.to_pylist()
    ]
