"""Ports of this machine for servers of tests, which stay theirs when such a server stops and starts again."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO

PORTS = range(21_000, 32_000)
"""Below those that Linux takes for outgoing connections, and apart from those of tests/real/oracle/BrokerLab.java."""
_CHANCE = random.Random()
_TAKEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, and which no process that runs tests of this machine gets while this one lives."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """One of them; RuntimeError when there is none."""
    for port in _CHANCE.sample(PORTS, len(PORTS)):
        if port not in _TAKEN and _locked(port) and _unused(port):
            _TAKEN.add(port)
            return port
    raise RuntimeError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free")


def _locked(port: int) -> bool:
    """Whether the byte of the port is this process's now; the system frees it when the process ends."""
    try:
        fcntl.lockf(_book(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _book() -> BinaryIO:
    return (Path(tempfile.gettempdir()) / f"mqstore-ports-{os.getuid()}").open("ab")


def _unused(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
