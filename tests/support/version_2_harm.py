"""Damage to the index of a version 2 queue, and how real 3.10.8 nodes reacted to each kind.

tests/real/rabbitmq/test_version_2.py checks it against a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage_core.formats.rabbitmq.classic import queue_v2

HEADER, ENTRY, OWN = queue_v2.HEADER.size, queue_v2.ENTRY.size, queue_v2.LOCATION_OWN
CRASHES = "crashes the queue when it reads this"
MAY_CRASH = f"ignores it, or {CRASHES}"
"""For bytes after the last message of a queue, which a node does not read after a clean stop."""
FORGETS = "forgets the message"


@dataclass(frozen=True)
class IndexHarm:
    """A change of a `.qi`, what `verify` predicts after a clean stop and after a kill, and the messages it costs."""

    change: Callable[[bytearray], None]
    clean: str
    killed: str
    lost: int


def live(data: bytearray) -> int:
    """The position of the first live entry whose message is in the `.qs`."""
    return next(at for at in range(HEADER, len(data), ENTRY) if (data[at], data[at + 3]) == (1, OWN))


def acknowledged(data: bytearray) -> int:
    """The position of the first acknowledged entry."""
    return next(at for at in range(HEADER, len(data), ENTRY) if not data[at])


def _set(of: Callable[[bytearray], int], byte: int, value: int) -> Callable[[bytearray], None]:
    return lambda data: data.__setitem__(of(data) + byte, value)


def _cut(data: bytearray) -> None:
    del data[-9:]


HARMS = {
    "status of a live entry": IndexHarm(_set(live, 0, 3), CRASHES, CRASHES, 0),
    "status of an acknowledged entry": IndexHarm(_set(acknowledged, 0, 2), CRASHES, CRASHES, 0),
    "unused flags": IndexHarm(_set(live, 1, 5), CRASHES, CRASHES, 0),
    "unused byte": IndexHarm(_set(live, 2, 4), CRASHES, CRASHES, 0),
    "unused flags of an acknowledged entry": IndexHarm(_set(acknowledged, 1, 4), CRASHES, CRASHES, 0),
    "unknown location": IndexHarm(_set(live, 3, 6), f"{CRASHES}, then {FORGETS}", FORGETS, 1),
    "a message in memory": IndexHarm(_set(live, 3, 0), f"{CRASHES}, then {FORGETS}", FORGETS, 1),
    "unused bytes of an address": IndexHarm(_set(live, 19, 1), f"{CRASHES}, then {FORGETS}", FORGETS, 1),
    "the last entry cut": IndexHarm(_cut, MAY_CRASH, CRASHES, 1),
    "zeros that are no whole entry": IndexHarm(lambda data: data.extend(bytes(9)), MAY_CRASH, CRASHES, 0),
}
