"""Items of a disk log, most of them found at once: the same as a walk from item to item finds."""

from __future__ import annotations

from random import Random
from struct import unpack_from

import pytest

from storage_core.formats.rabbitmq.erlang import disk_log

MAGIC = disk_log.ITEM_MAGIC.to_bytes(4, "big")


def walked(data: bytes) -> tuple[list[tuple[int, int]], int]:
    """The slow twin of `disk_log.items`."""
    found, position = [], disk_log.HEAD.size
    while position + 8 <= len(data):
        size, magic = unpack_from(">II", data, position)
        start = position + (8 if size < disk_log.LONG_ITEM_SIZE else 24)
        if magic != disk_log.ITEM_MAGIC or start + size > len(data):
            break
        found.append((start, start + size))
        position = start + size
    return found, position


def log(random: Random) -> bytes:
    """A log whose terms sometimes contain its magic, with a size before it, and that may be cut or changed."""
    holding = random.random() < 0.5
    terms = []
    for _ in range(random.randrange(30)):
        term = random.randbytes(
            random.choice([0, 1, 40, 90, 65_527, 65_528, 65_600][: 7 if random.random() < 0.1 else 4])
        )
        if holding and random.random() < 0.3:
            at = random.randrange(len(term) + 1)
            term = term[:at] + random.randrange(50).to_bytes(4, "big") + MAGIC + term[at:]
        terms.append(term)
    data = bytearray(disk_log.encode(terms))
    if random.random() < 0.3:
        at = random.randrange(8, len(data) + 1)
        data[at : at + 1] = random.randbytes(random.choice([0, 1, 2]))
    if random.random() < 0.3:
        del data[random.randrange(8, len(data) + 1) :]
    if random.random() < 0.3:
        data += random.choice([bytes(3), bytes(40), MAGIC, bytes(4) + MAGIC, MAGIC[:2], b"\xff" * 4 + MAGIC])
    return bytes(data)


@pytest.mark.parametrize("seed", range(300))
def test_items_are_those_of_a_walk(seed: int) -> None:
    data = log(Random(seed))
    starts, stops, end = disk_log.items(data)
    assert (list(zip(starts.tolist(), stops.tolist(), strict=True)), end) == walked(data)
