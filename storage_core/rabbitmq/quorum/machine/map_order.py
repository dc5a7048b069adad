"""The orders in which a node iterates over message ids in a map, and over pids.

Source: docs/format/rabbitmq-quorum.md 10; proven with OTP 25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storage_core.formats.rabbitmq.erlang.external_term import Opaque

LARGEST_FLAT_MAP = 32
_MASK = 0xFFFFFFFF
_GOLDEN, _SEED = 0x9E3779B9, 3432918353
_SHIFTS = (-13, 8, -13, -12, 16, -5, -3, 10, -15)
"""The number of bits by which each step shifts a word: to the left, or, if negative, to the right."""


def as_in_map(ids: Sequence[int]) -> list[int]:
    """Distinct numbers in the order of a map with these keys: ascending, or, for more than 32, that of a hash trie."""
    if len(ids) <= LARGEST_FLAT_MAP:
        return sorted(ids)
    return sorted(ids, key=_trie_path)


def _trie_path(key: int) -> tuple[int, ...]:
    """The 4-bit digits of the key's hash, lowest first."""
    found = _hash(key)
    return tuple(found >> shift & 15 for shift in range(0, 32, 4))


def _hash(key: int) -> int:
    tagged = key * 16 + 15
    words = [(_GOLDEN + (tagged & _MASK)) & _MASK, (_GOLDEN + (tagged >> 32)) & _MASK, _SEED]
    for step, shift in enumerate(_SHIFTS):
        target, first, second = step % 3, (step + 1) % 3, (step + 2) % 3
        value = (words[target] - words[first] - words[second]) & _MASK
        moved = words[second] << shift if shift > 0 else words[second] >> -shift
        words[target] = (value ^ moved) & _MASK
    return words[2]


def pid_key(pid: Opaque) -> tuple[int, int, bytes]:
    """A key that sorts pids as a node does: by serial and number, then by node."""
    size = 12 if pid.raw[:1] == b"X" else 9
    body = pid.raw[len(pid.raw) - size :]
    number, serial = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
    return serial, number, pid.raw[: len(pid.raw) - size] + body[8:]


def key_order(key: tuple[bytes, Opaque] | int) -> tuple[Any, ...]:
    """A key that sorts the keys of consumers as a node does: numbers, then ids by tag and pid."""
    return (0, key) if isinstance(key, int) else (1, key[0], pid_key(key[1]))


def node_of(pid: Opaque) -> bytes:
    """Name of the node of a pid."""
    size = 12 if pid.raw[:1] == b"X" else 9
    head = pid.raw[1 : len(pid.raw) - size]
    return head[3:] if head[:1] in {b"d", b"v"} else head[2:]
