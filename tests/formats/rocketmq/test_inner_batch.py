"""Unwrapping of inner batches, compared with the obvious way: a loop over the frames of each body."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.formats.rocketmq.encode import Rows, encode
from storage_core.formats.rocketmq.inner_batch import INNER_BATCH, unwrapped
from storage_core.formats.rocketmq.message import COMPRESSED, Messages, decode

BORN, STORED = bytes(range(20)), bytes([10, 0, 0, 1, 0, 0, 1, 2])


def frame(flag: int, body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">5i", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties


def frames_of(body: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """The messages that a client finds in the body of a batch; None if it fails."""
    found, at = [], 0
    while at < len(body):
        try:
            flag, length = struct.unpack_from(">2i", body, at + 12)
            (properties,) = struct.unpack_from(">h", body, at + 20 + length)
        except struct.error:
            return None
        stop = at + 22 + length + properties
        if length < 0 or properties < 0 or stop > len(body):
            return None
        found.append((flag, body[at + 20 : at + 20 + length], body[stop - properties : stop]))
        at = stop
    return found


def random_body(r: random.Random) -> bytes:
    frames = [
        frame(r.randrange(-5, 5), r.randbytes(r.choice((0, 1, 30))), r.choice((b"", b"KEYS\1a\2", b"TAGS\1b")))
        for _ in range(r.choice((1, 2, 2, 7, 40)))
    ]
    body = b"".join(frames)
    harm = r.random()
    if harm < 0.15:
        body = body[: r.randrange(1, len(body))]
    elif harm < 0.3:
        changed = bytearray(body)
        changed[r.randrange(len(body))] ^= 1 << r.randrange(8)
        body = bytes(changed)
    return body


def records(bodies: list[bytes], flags: list[int]) -> tuple[Messages, Any]:
    count = len(bodies)
    encoded = encode(
        Rows(
            topics=pa.array(["bulk", "b" * 130, "bulk"] * count)[:count].dictionary_encode(),
            bodies=pa.array(bodies, pa.binary()),
            properties=pa.array([b"INNER_NUM\x013\2"] * count, pa.binary()),
            born_hosts=pa.array([BORN if row % 2 else STORED for row in range(count)], pa.binary()),
            store_hosts=pa.array([STORED] * count, pa.binary()),
            queue_id=np.arange(count) % 3,
            flag=77,
            sys_flag=np.array(flags, np.int32),
            born_ms=np.arange(count) + 1_000,
            reconsume_times=2,
            queue_offset=np.arange(count) * 100,
            physical_offset=np.arange(count) * 5_000,
            store_ms=np.arange(count) + 2_000,
            prepared_offset=9,
        )
    )
    buffer = np.frombuffer(encoded.data, np.uint8).copy()
    starts = encoded.bounds[:-1].astype(np.int64)
    return decode(buffer, starts, encoded.sizes), encoded.sizes


def shown(messages: Messages, row: int) -> tuple[Any, ...]:
    one = messages.take(np.array([row]))
    names = ("queue_id", "physical_offset", "born_ms", "store_ms", "queue_offset", "flag", "sys_flag")
    numbers = [int(one.column(name)[0]) for name in names]
    return (
        one.topics()[0].as_py(), one.hosts("born")[0].as_py(), one.hosts("store")[0].as_py(), *numbers,
        one.bodies()[0].as_py(), one.properties()[0].as_py(), int(one.column("reconsume_times")[0]),
    )  # fmt: skip


def test_messages_are_those_that_a_client_finds() -> None:
    for seed in range(60):
        r = random.Random(seed)
        count = r.choice((1, 3, 20))
        flags = [r.choice((INNER_BATCH, INNER_BATCH, INNER_BATCH | COMPRESSED, 0, 0x80, 0x40)) for _ in range(count)]
        bodies = [random_body(r) for _ in range(count)]
        messages, sizes = records(bodies, flags)
        assert not messages.flaws.any()
        damaged = r.randrange(count)
        messages.buffer[messages.body_start[damaged]] ^= 0x10
        expected: list[tuple[int, int, tuple[Any, ...]]] = []
        for row, (body, flag) in enumerate(zip(bodies, flags, strict=True)):
            own = shown(messages, row)
            found = frames_of(body) if flag == INNER_BATCH and row != damaged else None
            if found is None:
                expected.append((row, 0, own))
                continue
            for ordinal, (inner_flag, inner_body, properties) in enumerate(found):
                whole = (*own[:7], own[7] + ordinal, inner_flag, own[9] & ~INNER_BATCH, inner_body, properties, 0)
                expected.append((row, ordinal, whole))
        parts = unwrapped(messages, sizes, verify_crc=True)
        if parts is None:
            assert len(expected) == count
            assert all(each[2] == shown(messages, each[0]) for each in expected)
            continue
        apart = decode(parts.buffer, parts.starts, parts.sizes)
        assert not apart.flaws.any()
        assert not apart.wrong_bodies()[parts.rows != damaged].any()
        actual = [(int(parts.rows[row]), int(parts.ordinals[row]), shown(apart, row)) for row in range(len(parts.rows))]
        assert actual == expected


def test_without_batches_nothing_is_copied() -> None:
    messages, sizes = records([frame(1, b"body", b"")] * 3, [0, 0x80, 0x40])
    assert unwrapped(messages, sizes, verify_crc=True) is None
