"""Repairs that no longer find what a file's size should be: they keep the sizes of before, or leave the file alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.files.file_chain import find_chain
from storage_core.store import Mode, Scan, ScanRequest
from tests.faults import Died, stopped_at
from tests.golden.archive import unpack
from tests.reference.rocketmq_model import Message, ModelStore
from tests.reference.served import AS_BROKER, in_partitions, read

FIRST = "0" * 20


def made(root: Path, count: int = 30) -> Path:
    model = ModelStore(4096, 400)
    for number in range(count):
        now = 1_700_000_000_000 + number * 10
        model.put(Message("Topic", 0, f"body {number:03}".encode(), b"a\x01b\x02", now, now - 5))
    return model.save(root)


def flip(path: Path, position: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def repair(store: Path) -> list[str]:
    with open_store(str(store)) as opened:
        done = list(opened.repair())
        assert not (store / "commitlog" / "mqstore-unfinished-write").exists()
        return done + [f"left {finding.kind}" for finding in opened.verify()]


def served(store: Path) -> int:
    return len(read(store, in_partitions(1, columns=("body",), **AS_BROKER)))


def test_the_only_queue_is_rebuilt_with_files_of_its_size(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    flip(store / "consumequeue" / "Topic" / "0" / FIRST, 15)
    assert repair(store) == ["consumequeue/Topic/0: rebuilt from the log"]
    assert [path.stat().st_size for path in sorted((store / "consumequeue" / "Topic" / "0").iterdir())] == [400, 400]
    assert served(store) == 30


@pytest.mark.parametrize("rows", [30, 29])
def test_a_stopped_repair_keeps_the_size(tmp_path: Path, rows: int) -> None:
    """With 29 the first message is damaged: the queue begins later, and is listed in the order of the log."""
    number, ended = 0, False
    while not ended:
        store = made(tmp_path / str(number))
        flip(store / "consumequeue" / "Topic" / "0" / FIRST, 15)
        if rows < 30:
            flip(store / "commitlog" / FIRST, 4)
        with open_store(str(store)) as opened, stopped_at(number) as faults:
            with suppress(Died):
                opened.repair()
            ended = not faults.struck
        repair(store)
        sizes = {path.stat().st_size for path in (store / "consumequeue" / "Topic" / "0").iterdir()}
        assert (sizes, served(store)) == ({400}, rows), number
        number += 3


def test_an_index_of_unknown_geometry_does_not_hold_up_the_queues(tmp_path: Path) -> None:
    store = unpack("broker-4.9.3", tmp_path)
    rows = served(store)
    (index,) = (store / "index").iterdir()
    count = int.from_bytes(index.read_bytes()[36:40], "big")
    flip(index, 40 + 4 * 500 + 20 * (count - 1) + 11)
    flip(store / "consumequeue" / "greetings" / "3" / FIRST, 11)
    before = index.read_bytes()
    assert repair(store) == [
        "consumequeue/greetings/3: rebuilt from the log", "left unusable index file", "left missing index",
    ]  # fmt: skip
    assert served(store) == rows
    assert index.read_bytes() == before


@pytest.mark.parametrize("short", [0, 1])
def test_one_of_two_log_files_is_short(tmp_path: Path, short: int) -> None:
    store = made(tmp_path / "store", 60)
    path = sorted((store / "commitlog").iterdir())[short]
    path.write_bytes(path.read_bytes()[:2048])
    assert find_chain([str(store / "commitlog")]).file_size == 4096
    intact = len(read(store, ScanRequest(columns=("body",), scan=Scan.LOG, mode=Mode.DROPMALFORMED)))
    with open_store(str(store)) as opened:
        opened.repair()
        assert [finding.kind for finding in opened.verify()] == []
    assert {path.stat().st_size for path in (store / "commitlog").iterdir()} == {4096}
    assert served(store) == intact > 30


def test_a_topic_that_can_not_be_a_folder(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    log = store / "commitlog" / FIRST
    flip(log, log.read_bytes().find(b"\x05Topic", 600) + 2, ord("o"))
    repair(store)
    assert served(store) == 29
