"""Packs hosts for the store: `ip:port` as 4 or 16 address bytes and 4 of port (rocketmq.md 2.1, interface.md 1)."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

import pyarrow as pa

from storage_core.arrays import bytes_array

LAST_PORT = 0xFFFF
"""Clients do not decode a message with a host whose port is larger (rocketmq.md 2.1)."""


def pack_host(text: str) -> bytes:
    """The stored bytes of `ip:port` or `[ipv6]:port`. Raises ValueError, with a one-line text, if it is neither."""
    address, separator, port = text.strip().rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    try:
        packed = ipaddress.ip_address(bare).packed
        number = int(port)
    except ValueError:
        separator = ""
    if not separator or not 0 <= number <= LAST_PORT:
        raise ValueError("it is ip:port, or [ip]:port for IPv6, and a port has 16 bits")
    return packed + number.to_bytes(4, "big")


def pack_hosts(texts: pa.StringArray, default: bytes) -> tuple[pa.BinaryArray, int | None]:
    """The stored bytes of each host, `default` for null; and the first row that is not a host, if there is one."""
    coded = texts.dictionary_encode()
    packed: list[bytes] = []
    wrong: int | None = None
    for number, text in enumerate(coded.dictionary.to_pylist()):
        try:
            packed.append(pack_host(text))
        except ValueError:
            packed.append(default)
            wrong = wrong if wrong is not None else coded.indices.to_pylist().index(number)
    found = bytes_array([*packed, default])
    return found.take(coded.indices.fill_null(len(packed))), wrong


@lru_cache(maxsize=2)
def one_host(packed: bytes, count: int) -> pa.BinaryArray:
    """The stored bytes of a host, `count` times. The batches of a job share the array."""
    return pa.repeat(pa.scalar(packed, pa.binary()), count)
