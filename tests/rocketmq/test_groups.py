"""Where consumer groups stand: each end of a read has its own group."""

from __future__ import annotations

import json
from pathlib import Path

from storage_core.store import EARLIEST, LATEST, OffsetBound, ScanRequest
from tests.reference.served import read
from tests.support.rocketmq_writes import GEOMETRY, rows, write


def test_from_one_group_to_another(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(40, topics=("orders",)), queues=1, **GEOMETRY)
    offsets = {"orders@slow": {"0": 7}, "orders@fast": {"0": 31}, "audit@other": {"0": 1}}
    (directory / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))

    def between(start: str, stop: str) -> list[int]:
        bounds = {"start": OffsetBound(EARLIEST, group=start), "stop": OffsetBound(LATEST, group=stop)}
        return sorted(row["queueOffset"] for row in read(directory, ScanRequest(columns=("queueOffset",), **bounds)))

    assert between("slow", "fast") == list(range(7, 31))
    assert between("slow", "other") == []
