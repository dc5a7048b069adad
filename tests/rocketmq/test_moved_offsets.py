"""Repair moves the offset of a group with its next message, also if the old queue no longer lists that message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.formats.rocketmq.config_json import decode_config
from tests.reference.rocketmq_model import Message, ModelStore
from tests.reference.served import by_place

OFFSETS = {"next": 30, "end": 60, "before": 3, "lost": 5, "ahead": 70}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with 60 messages, of which the record of number 5 is damaged."""
    model = ModelStore(16_384, 400)
    for number in range(60):
        now = 1_700_000_000_000 + number * 10
        model.put(Message("T", 0, f"{number}".zfill(3).encode(), b"a\x01b\x02", now, now - 5))
    root = model.save(tmp_path / "store")
    config = root / "config"
    config.mkdir()
    offsets = {f"T@{group}": {"0": offset} for group, offset in OFFSETS.items()}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    log = root / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[5 * size : 6 * size] = b"\xee" * size
    log.write_bytes(data)
    return root


@pytest.mark.parametrize("harm", ["none", "entry", "file", "first file", "queue", "queues"])
def test_each_group_reads_on_with_its_next_message(store: Path, harm: str) -> None:
    queue = store / "consumequeue" / "T" / "0"
    match harm:
        case "entry":
            first = queue / ("0" * 20)
            data = first.read_bytes()
            first.write_bytes(data[:100] + bytes(20) + data[120:])
        case "file" | "first file":
            (queue / f"{400 if harm == 'file' else 0:020}").unlink()
        case "queue" | "queues":
            shutil.rmtree(queue if harm == "queue" else store / "consumequeue")
    with open_store(str(store)) as opened:
        opened.repair()
    table = decode_config((store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    moved = {
        group: table[f"T@{group}"][0] if 0 in table[f"T@{group}"] else table[f"T@{group}"]["0"] for group in OFFSETS
    }
    bodies = {row["queueOffset"]: row["body"] for row in by_place(store, 1)}
    assert [bodies.get(moved[group]) for group in ("next", "before", "lost")] == [b"030", b"003", b"006"]
    assert moved["end"] == 59
