"""Records at which recovery of 5.x ends the log and that of 4.9 does not (rocketmq.md 5.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.store import ScanRequest
from tests.reference.rocketmq_model import Message, ModelStore
from tests.reference.served import AS_BROKER, in_partitions, read

BLANK = bytes.fromhex("cbd43194")


def model(count: int, properties: dict[int, bytes]) -> ModelStore:
    made = ModelStore(4096, 400)
    for number in range(count):
        now = 1_700_000_000_000 + number * 10
        extra = properties.get(number, b"a\x01b\x02")
        made.put(Message("T", 0, f"body {number:03}".encode(), extra, now, now - 5))
    return made


def served(store: Path, recovery: str) -> int:
    request: ScanRequest = in_partitions(1, columns=("body",), **AS_BROKER)
    return len(read(store, request, recovery=recovery))


@pytest.mark.parametrize(
    ("number", "base", "rows"),
    [
        ("x", "0", 20), ("2", "y", 20), ("40000", "0", 20), ("2", str(1 << 63), 20), ("1_0", "0", 20), ("", "0", 30),
        (" 2", "0", 20), ("2", "0", 30), ("+2", "-0", 30), ("-32768", str((1 << 63) - 1), 30), ("x", None, 30),
        (None, "x", 30),
    ],
)  # fmt: skip
def test_inner_numbers_that_are_none(tmp_path: Path, number: str | None, base: str | None, rows: int) -> None:
    pairs = [("INNER_NUM", number), ("INNER_BASE", base)]
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value is not None).encode()
    store = model(30, {20: properties}).save(tmp_path / "store")
    assert (served(store, "5.x"), served(store, "4.9")) == (rows, 30)


@pytest.mark.parametrize(("size", "rows"), [(0x60, 39), (0x28, 60), (0x02, 60)])
def test_a_blank_record_that_is_longer_than_its_file(tmp_path: Path, size: int, rows: int) -> None:
    store = model(60, {}).save(tmp_path / "store")
    (store / "abort").touch()
    log = sorted((store / "commitlog").iterdir())[-2]
    data = bytearray(log.read_bytes())
    data[data.find(BLANK) - 1] = size
    log.write_bytes(data)
    assert (served(store, "5.x"), served(store, "4.9")) == (rows, 60)
