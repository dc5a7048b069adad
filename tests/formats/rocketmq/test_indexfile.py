"""Index layouts against bytes that the real 4.9.3 wrote for one message (topic T, KEYS `k1 k2`, UNIQ_KEY `U1`)."""

from __future__ import annotations

import numpy as np

from storage_core.formats.rocketmq.indexfile import ENTRY, HEADER, SLOT, Geometry, IndexHeader, decode_header, key_hash
from storage_core.formats.spans import structs_at

BEGIN = 0x18BCFE56800
HEAD = bytes.fromhex(
    "0000018bcfe56800 0000018bcfe56800 0000000000000000 0000000000000000 00000003 00000004".replace(" ", "")
)
SLOTS = b"".join(number.to_bytes(4) for number in (0, 0, 0, 1, 0, 2, 3, 0, 0, 0))
HASHES = {"U1": 0x0026BD0B, "k1": 0x0026BFB5, "k2": 0x0026BFB6}
ENTRIES = bytes(20) + b"".join(value.to_bytes(4) + bytes(16) for value in HASHES.values())
REAL = (HEAD + SLOTS + ENTRIES).ljust(480, b"\0")


def test_the_default_geometry_has_the_length_of_the_page() -> None:
    assert Geometry().file_size == 420_000_040
    assert Geometry(10, 20).file_size == len(REAL)


def test_header() -> None:
    assert decode_header(REAL) == IndexHeader(BEGIN, BEGIN, 0, 0, 3, 4)
    assert decode_header(REAL).count == 3
    assert decode_header(bytes(HEADER.size)).count == 0


def test_slots_and_entries_lie_where_the_keys_say() -> None:
    geometry = Geometry(10, 20)
    buffer = np.frombuffer(REAL, np.uint8)
    hashes = np.array([key_hash("T", key) for key in HASHES], np.int32)
    assert hashes.tolist() == list(HASHES.values())
    numbers = structs_at(buffer, SLOT.dtype, geometry.slot_positions(hashes))["entry"].astype(np.int32)
    assert numbers.tolist() == [1, 2, 3]
    entries = structs_at(buffer, ENTRY.dtype, geometry.entry_positions(numbers))
    assert entries["key_hash"].tolist() == hashes.tolist()
    assert entries["previous"].tolist() == [0, 0, 0]
