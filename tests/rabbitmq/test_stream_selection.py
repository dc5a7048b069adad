"""Offsets of streams that retention has deleted, and streams of one name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_core.errors import DataLossError, OptionError
from storage_core.rabbitmq import open_store
from storage_core.store import EARLIEST, LATEST, OffsetBound, ScanRequest
from tests.rabbitmq import stream_golden as golden


def test_an_offset_that_retention_has_deleted(tmp_path: Path) -> None:
    folder = golden.unpack("s04_retention_bytes", tmp_path)
    early, earlier = ({("ret", 0): offset} for offset in (10, 5))
    with open_store(str(folder)) as store:
        snapshot = store.snapshot()
        for request in (
            ScanRequest(start=OffsetBound(EARLIEST, earlier)),
            ScanRequest(start=OffsetBound(EARLIEST, earlier), stop=OffsetBound(LATEST, early)),
            ScanRequest(stop=OffsetBound(LATEST, early)),
        ):
            with pytest.raises(DataLossError, match=r"is expired; the queue holds \[1656, 2013\); set failOn"):
                snapshot.plan(request)
        rest = ScanRequest(start=OffsetBound(EARLIEST, earlier), fail_on_data_loss=False)
        none = ScanRequest(stop=OffsetBound(LATEST, early), fail_on_data_loss=False)
        counts = [sum(batch.num_rows for batch in snapshot.read(each)) for each in (ScanRequest(), rest, none)]
    assert counts == [354, 354, 0]


def test_queues_of_one_name(tmp_path: Path) -> None:
    folder = golden.unpack("s04_retention_bytes", tmp_path)
    (own,) = (path for path in folder.iterdir() if path.is_dir())
    name, _, declared = own.name.rpartition("_")
    for moment in (0, 1):
        shutil.copytree(own, tmp_path / "copy" / "stream" / f"{name}_{int(declared) + moment}")
    with open_store(str(tmp_path / "copy" / "stream")) as store:
        assert store.snapshot().repeated_topics == {"__ret"}
        for name, snapshot in (("startingOffsets", store.snapshot()), ("endingOffsets", store.snapshot())):
            bound = OffsetBound(EARLIEST if name == "startingOffsets" else LATEST, {("__ret", 0): 2000})
            request = ScanRequest(**{"start" if name == "startingOffsets" else "stop": bound})
            with pytest.raises(
                OptionError, match=rf"'{name}' = '__ret': several queues have this name, .* option vhost"
            ):
                snapshot.plan(request)
        with pytest.raises(OptionError, match="several queues have this name"):
            store.follow().look().starts(ScanRequest(start=OffsetBound(EARLIEST, {("__ret", 0): 2000})))
