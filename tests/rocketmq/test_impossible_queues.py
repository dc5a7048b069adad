"""Records that name a queue which cannot have a folder: a repair or a write lists them nowhere, above all not outside
the store.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.formats.rocketmq.message import HEADER
from storage_core.formats.rocketmq.paths import has_folder
from storage_core.rocketmq.repair.offset_moves import note_path
from storage_core.store import Scan
from tests.golden import archive
from tests.reference.served import by_place
from tests.support.rocketmq_files import overwrite, records

TOPIC = b"%RETRY%group-a"
QUEUES = [(b"../../../outer", 0), (b"RETRY/../../..", 0), (b"%RETRY%group/a", 0), (TOPIC, -1)]
"""Topics that are as long as `TOPIC`, and queue ids."""


@pytest.fixture(params=QUEUES, ids=lambda queue: f"{queue[0].decode()} {queue[1]}")
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of 4.9.3 whose first record of a queue has another topic or queue id."""
    topic, queue_id = request.param
    directory = archive.unpack("mixed-4.9.3", tmp_path / "a" / "b")
    for record in records(directory):
        data = record.path.read_bytes()
        at = record.body_position + record.body_size + 1
        if data[at - 1] == len(TOPIC) and data[at : at + len(TOPIC)] == TOPIC:
            overwrite(record.path, at, topic)
            overwrite(record.path, record.position + HEADER.field("queue_id").offset, struct.pack(">i", queue_id))
            return directory
    raise AssertionError("the fixture has no such record")


def outside(tmp_path: Path, *stores: Path) -> set[Path]:
    return {path for path in tmp_path.rglob("*") if not any(path.is_relative_to(store) for store in stores)}


def unlisted(directory: Path) -> list[tuple[str, bool]]:
    with open_store(str(directory)) as store:
        return [(finding.reason, finding.repairable) for finding in store.verify()]


@pytest.mark.parametrize("loses_queues", [False, True])
def test_a_repair_lists_them_nowhere(store: Path, tmp_path: Path, loses_queues: bool) -> None:
    target = tmp_path / "c" / "d" / "repaired"
    target.parent.mkdir(parents=True)
    if loses_queues:
        (store / "consumequeue").rename(tmp_path / "gone")
    before = outside(tmp_path, store, target)
    with open_store(str(store)) as opened:
        plan = opened.repair(dry_run=True)
        done = opened.repair(str(target))
    assert any(line.endswith("unlisted messages: nothing; scan=log reads the messages") for line in plan)
    assert len(done) == len(set(done))
    assert outside(tmp_path, store, target) == before
    ((reason, is_repairable),) = unlisted(target)
    assert reason.endswith("1 message is in no queue file, and the queue cannot have a folder")
    assert not is_repairable
    assert len(by_place(target, 1)) == len(by_place(target, 1, scan=Scan.LOG)) - excluded(target) - 1


@pytest.mark.parametrize("noted", [("../../../outer", 0), ("%RETRY%group/a", 0), (TOPIC.decode(), -1)])
def test_a_stopped_repair_that_began_to_list_them(store: Path, tmp_path: Path, noted: tuple[str, int]) -> None:
    """As a repair of an earlier version of mqstore did."""
    note = Path(note_path(str(store)))
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"inOrder": [noted]}))
    before = outside(tmp_path, store)
    with open_store(str(store)) as opened:
        done = opened.repair()
    assert not any(f"{noted[0]}/{noted[1]}" in line for line in done)
    assert outside(tmp_path, store) == before
    assert [is_repairable for _, is_repairable in unlisted(store)] == [False]


def excluded(directory: Path) -> int:
    """The number of prepared and rolled-back records, which no queue lists."""
    return sum(row["sysFlag"] & 0xC in (4, 12) for row in by_place(directory, 1, scan=Scan.LOG))


def test_a_write_after_a_crash_lists_them_nowhere(store: Path, tmp_path: Path) -> None:
    (store / "abort").touch()
    (store / "checkpoint").write_bytes(b"")
    before = outside(tmp_path, store)
    for _ in range(2):
        with open_store(str(store)) as opened:
            assert opened.append(pa.table({"topic": ["new"], "body": [b"1"]})) == 1
    assert outside(tmp_path, store) == before
    assert [is_repairable for reason, is_repairable in unlisted(store) if "in no queue" in reason] == [False]


@pytest.mark.parametrize(
    ("topic", "queue_id", "expected"),
    [
        ("T", 0, True), ("%LMQ%a|b_c-d", 7, True), ("标" * 85, 0, True), ("标" * 86, 0, False), ("", 0, False),
        (".", 0, False), ("..", 0, False), ("...", 0, True), ("/", 0, False), ("a/b", 0, False), ("a\0b", 0, False),
        ("T", -1, False),
    ],
)  # fmt: skip
def test_which_queues_can_have_a_folder(topic: str, queue_id: int, expected: bool) -> None:
    assert has_folder(topic, queue_id) == expected
