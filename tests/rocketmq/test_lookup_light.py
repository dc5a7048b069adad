"""A message in several queues is a row of each, by a lookup too: light queues, whose records have another topic."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from storage_core.store import ScanRequest
from tests.reference.rocketmq_index import Index, dispatch
from tests.reference.rocketmq_model import Message, ModelStore, java_hash, properties_bytes
from tests.reference.served import AS_BROKER, place, read

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store, index, light = ModelStore(8192, 400), list[Index](), dict[str, list[bytes]]()
    for number in range(60):
        pairs = [("KEYS", f"k{number % 7}"), ("UNIQ_KEY", f"U{number:04}")]
        names = [name for name in ("%LMQ%a", "%LMQ%b") if number % 3 == 0 or (name == "%LMQ%b" and number % 5 == 0)]
        if names:
            pairs.append(("INNER_MULTI_DISPATCH", ",".join(names)))
        at, size = store.put(Message("T", 1, b"x", properties_bytes(pairs, True), FIRST_MS, FIRST_MS))
        dispatch(index, 5, 40, "T", at, FIRST_MS, 0, dict(pairs))
        for name in names:
            light.setdefault(name, []).append(struct.pack(">qiq", at, size, java_hash("")))
    saved = store.save(tmp_path / "store")
    for name, entries in light.items():
        (saved / "consumequeue" / name / "0").mkdir(parents=True)
        data = b"".join(entries).ljust(1200, b"\0")
        for start in range(0, 1200, 400):
            (saved / "consumequeue" / name / "0" / f"{start:020d}").write_bytes(data[start : start + 400])
    (saved / "index").mkdir()
    for number, file in enumerate(index):
        (saved / "index" / str(20231114221320000 + number)).write_bytes(file.content())
    return saved


@pytest.mark.parametrize("options", [{}, {"topics": ("%LMQ%b",)}, {"topics": ("T",)}, {"topics": ("%LMQ%a", "T")}])
def test_every_queue_of_a_message(directory: Path, options: dict[str, tuple[str, ...]]) -> None:
    rows = read(directory, ScanRequest(**options, **AS_BROKER))
    assert rows
    for key in ("k0", "k1", "k6", "none"):
        got = read(directory, ScanRequest(keys=(key,), **options, **AS_BROKER))
        assert sorted(got, key=place) == sorted((row for row in rows if row["key"] == key), key=place)
    for message_id in ("U0000", "U0015", "U0007"):
        got = read(directory, ScanRequest(message_ids=(message_id,), **options, **AS_BROKER))
        assert sorted(got, key=place) == sorted((row for row in rows if row["msgId"] == message_id), key=place)
