"""Ports of this machine for the servers of tests; a server that stops and starts again keeps its port."""

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
"""Below Linux's range for outgoing connections."""
_CHANCE = random.Random()
_TAKEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that are not in use, and that no other test process on this machine gets while this process runs."""
    return [free_port() for _ in range(count)]


def free_port(*distances: int) -> int:
    """One such port; those at these distances from it are as free. Raises RuntimeError if there is none."""
    left = set(PORTS) - _TAKEN
    for port in _CHANCE.sample(PORTS, len(PORTS)):
        ports = {port, *(port + distance for distance in distances)}
        if ports <= left and all(_locked(port) and _unused(port) for port in ports):
            _TAKEN.update(ports)
            return port
    raise RuntimeError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free")


def _locked(port: int) -> bool:
    """Tries to lock the byte of the port for this process; the system frees it when the process ends."""
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
