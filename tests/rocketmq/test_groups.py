"""Offsets of consumer groups: each end of a read has its own group."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError, UnsupportedFormatError
from storage_core.formats.rocketmq.config_json import decode_config
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


def with_both_files(directory: Path) -> tuple[Path, Path]:
    """Makes a store whose broker had `enableLmq` set at some time, and returns its two offset files."""
    write(directory, rows(40, topics=("orders", "%LMQ%a")), queues=1, **GEOMETRY)
    plain, light = (directory / "config" / name for name in ("consumerOffset.json", "lmqConsumerOffset.json"))
    plain.write_text('{"offsetTable":{"orders@old":{0:7}}}')
    light.write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":3},"offsetTable":{"orders@new":{0:5}}}')
    return plain, light


def committed(directory: Path) -> dict[tuple[str, str, int], int]:
    with open_store(str(directory)) as store:
        (batch,) = store.view("offsets")
    return {(row["group"], row["topic"], row["queueId"]): row["committed"] for row in batch.to_pylist()}


BY_PLAIN = {("old", "orders", 0): 7}
BY_LIGHT = {("%LMQ%g", "%LMQ%a", 0): 3, ("new", "orders", 0): 5}


def test_a_broker_with_light_queues_keeps_offsets_in_another_file(tmp_path: Path) -> None:
    plain, light = with_both_files(tmp_path / "store")
    for seconds, expected in ((0, BY_LIGHT), (9, BY_LIGHT), (-3600, BY_LIGHT), (11, BY_PLAIN)):
        os.utime(light, (1_700_000_000, 1_700_000_000))
        os.utime(plain, (1_700_000_000 + seconds, 1_700_000_000 + seconds))
        assert committed(tmp_path / "store") == expected, seconds
    light.rename(f"{light}.bak")
    os.utime(plain, (1_700_000_000, 1_700_000_000))
    assert committed(tmp_path / "store") == BY_LIGHT
    plain.unlink()
    assert committed(tmp_path / "store") == BY_LIGHT
    Path(f"{light}.bak").unlink()
    assert committed(tmp_path / "store") == {}


def test_offsets_are_set_in_the_file_that_the_broker_reads(tmp_path: Path) -> None:
    plain, light = with_both_files(tmp_path / "store")
    old = plain.read_bytes(), light.read_bytes()
    with open_store(str(tmp_path / "store")) as store:
        store.set_group_offsets("new", {("orders", 0): 6})
        store.set_group_offsets("%LMQ%g", {("%LMQ%a", 0): 4})
        store.set_group_offsets("%LMQ%h", {("orders", 0): 1})
        with pytest.raises(MqStoreError, match=r"%LMQ%g is a group of light queues.*leave orders/1 out") as caught:
            store.set_group_offsets("%LMQ%g", {("orders", 1): 4})
    assert "\n" not in str(caught.value)
    assert plain.read_bytes() == old[0]
    assert decode_config(light.read_bytes()) == {
        "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 4, "orders@%LMQ%h": 1}, "offsetTable": {"orders@new": {"0": 6}},
    }  # fmt: skip
    assert Path(f"{light}.bak").exists()


@pytest.mark.parametrize("folder", ["consumerOffsets", "rdb"])
def test_offsets_in_rocksdb_are_not_those_of_an_old_file(tmp_path: Path, folder: str) -> None:
    """The broker wrote the file before it used RocksDB."""
    directory = tmp_path / "store"
    with_both_files(directory)
    (directory / "config" / folder).mkdir()
    request = ScanRequest(start=OffsetBound(EARLIEST, group="new"))
    with open_store(str(directory)) as store:
        for call in (
            lambda: list(store.view("offsets")), lambda: list(store.snapshot().read(request)),
            lambda: store.set_group_offsets("new", {("orders", 0): 6}),
        ):  # fmt: skip
            with pytest.raises(UnsupportedFormatError, match=rf"{folder}: this broker keeps its offsets in RocksDB"):
                call()
        assert sum(batch.num_rows for batch in store.snapshot().read(ScanRequest())) == 40
