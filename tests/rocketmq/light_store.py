"""A store whose records name light queues besides their own, as a broker leaves it after a clean stop."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.reference.rocketmq_index import Index, dispatch
from tests.reference.rocketmq_model import Message, ModelStore, java_hash, properties_bytes

FIRST_MS = 1_700_000_000_000
QUEUE_FILE_SIZE = 400


def make_light_store(root: Path) -> Path:
    """60 messages of one queue; from the tenth on, a third are also in `%LMQ%a`, and these and more in `%LMQ%b`."""
    store, index, light = ModelStore(8192, QUEUE_FILE_SIZE), list[Index](), dict[str, list[bytes]]()
    for number in range(60):
        pairs = [("KEYS", f"k{number % 7}"), ("UNIQ_KEY", f"U{number:04}")]
        names = ["%LMQ%a", "%LMQ%b"] if number % 3 == 0 else ["%LMQ%b"] if number % 5 == 0 else []
        if number < 9:
            names = []
        if names:
            offsets = ",".join(str(len(light.get(name, ()))) for name in names)
            pairs += [("INNER_MULTI_DISPATCH", ",".join(names)), ("INNER_MULTI_QUEUE_OFFSET", offsets)]
        store_ms = FIRST_MS + number
        at, size = store.put(Message("T", 1, b"x", properties_bytes(pairs, True), store_ms, store_ms))
        dispatch(index, 5, 40, "T", at, store_ms, 0, dict(pairs))
        for name in names:
            light.setdefault(name, []).append(struct.pack(">qiq", at, size, java_hash("")))
    saved = store.save(root)
    for name, entries in light.items():
        (saved / "consumequeue" / name / "0").mkdir(parents=True)
        data = b"".join(entries)
        for start in range(0, len(data), QUEUE_FILE_SIZE):
            part = data[start : start + QUEUE_FILE_SIZE].ljust(QUEUE_FILE_SIZE, b"\0")
            (saved / "consumequeue" / name / "0" / f"{start:020d}").write_bytes(part)
    (saved / "index").mkdir()
    for number, file in enumerate(index):
        (saved / "index" / str(20231114221320000 + number)).write_bytes(file.content())
    return saved
