"""The golden vectors of the format page (section 11): bytes and digests that both real stores produced."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.reference.rocketmq_model import Message, ModelStore
from tests.reference.rocketmq_record import Log
from tests.reference.served import AS_BROKER, Row, differences, in_partitions, place, read
from tests.support.rocketmq_run import RUN_DIGESTS, run_message

LOG_493 = """
0000007e daa320a7 3610a686 00000000 00000000 0000000000000000 0000000000000000 00000000
0000018bcfe56418 7f00000100003039 0000018bcfe56800 7f00000100002a9f 00000000 0000000000000000
00000005 68656c6c6f 01 54 001d 4b455953 01 6b31206b32 02 554e49515f4b4559 01 5531 02 54414753 01 41
0000005c daa320a7 00000000 00000000 00000000 0000000000000001 000000000000007e 00000000
0000018bcfe56418 7f00000100003039 0000018bcfe56800 7f00000100002a9f 00000000 0000000000000000
00000000 01 54 0000
"""
QUEUE_493 = "0000000000000000 0000007e 0000000000000041 000000000000007e 0000005c 0000000000000000"


def _two_records(version: str) -> tuple[bytes, bytes]:
    """Log and queue of section 11.1. 5.3.3 differs by one 0x02 after the properties of the first record."""
    log, queue = bytes.fromhex(LOG_493), bytearray.fromhex(QUEUE_493)
    if version == "4.9.3":
        return log, bytes(queue)
    first = bytearray(log[:126] + b"\x02")
    first[3], first[96] = 0x7F, 0x1E
    second = bytearray(log[126:])
    second[35] = 0x7F
    queue[11], queue[27] = 0x7F, 0x7F
    return bytes(first + second), bytes(queue)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_two_small_records(version: str, tmp_path: Path) -> None:
    log, queue = _two_records(version)
    directory = tmp_path / "two"
    _put(directory / "commitlog" / f"{0:020d}", log.ljust(4096, b"\0"))
    _put(directory / "consumequeue" / "T" / "0" / f"{0:020d}", queue.ljust(400, b"\0"))
    tail = "\x02" if version == "5.3.3" else ""
    common = {
        "topic": "T", "queueId": 0, "bornTimestamp": 1699999999000, "storeTimestamp": 1700000000000,
        "bornHost": "127.0.0.1:12345", "storeHost": "127.0.0.1:10911", "sysFlag": 0, "flag": 0, "reconsumeTimes": 0,
        "preparedTransactionOffset": 0, "store": "two",
    }  # fmt: skip
    size = 127 if tail else 126
    first: Row = {
        **common, "queueOffset": 0, "key": "k1 k2", "keys": ["k1", "k2"], "tags": "A", "body": b"hello",
        "properties": [("KEYS", "k1 k2"), ("UNIQ_KEY", "U1"), ("TAGS", "A")], "msgId": "U1",
        "offsetMsgId": "7F00000100002A9F0000000000000000", "bodyCrc": 907060870, "physicalOffset": 0, "size": size,
        "rawProperties": f"KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02TAGS\x01A{tail}".encode(),
    }  # fmt: skip
    offset_id = f"7F00000100002A9F00000000000000{size:02X}"
    second: Row = {
        **common, "queueOffset": 1, "key": None, "keys": None, "tags": None, "body": b"", "properties": [],
        "msgId": offset_id, "offsetMsgId": offset_id, "bodyCrc": 0, "physicalOffset": size, "size": 92,
        "rawProperties": b"",
    }  # fmt: skip

    assert differences([first, second], read(directory, in_partitions(1))) == []


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_run_of_200_messages(version: str, tmp_path: Path) -> None:
    store = ModelStore(log_file_size=16384, queue_file_size=400)
    messages = [run_message(i, version) for i in range(200)]
    placed = [store.put(message) for message in messages]
    files = store.files()
    for prefix, digest in RUN_DIGESTS[version].items():
        content = b"".join(data for name, data in sorted(files.items()) if name.startswith(prefix + "/"))
        assert hashlib.sha256(content).hexdigest() == digest, prefix

    directory = store.save(tmp_path / "run")
    log = Log(directory / "commitlog")
    queued = [i for i in range(200) if messages[i].sys_flag & 12 in (0, 8)]
    rows = sorted(read(directory, in_partitions(7, **AS_BROKER)), key=place)

    assert differences([log.row(placed[i][0]) for i in queued], rows) == []
    for i in queued:
        row = next(row for row in rows if row["physicalOffset"] == placed[i][0])
        assert (row["body"], row["flag"], row["preparedTransactionOffset"]) == (messages[i].body, i, 1000 * i)
    assert placed[199] == ((85211, 264) if version == "4.9.3" else (85220, 265))


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def test_a_time_that_no_calendar_holds_is_null(tmp_path: Path) -> None:
    far = {1 << 60: None, -(1 << 62): None, 253_402_300_800_000: None, 253_402_300_799_999: 253_402_300_799_999, -1: -1}
    store = ModelStore(log_file_size=16384, queue_file_size=400)
    for born_ms in far:
        store.put(Message("T", 0, b"x", b"", store_ms=1, born_ms=born_ms))

    rows = read(store.save(tmp_path / "times"), in_partitions(1))

    assert [row["bornTimestamp"] for row in sorted(rows, key=place)] == list(far.values())
