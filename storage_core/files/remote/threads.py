"""Thread pools that wait for remote stores: two for transfers, one for small reads, one for functions of readers.

Created on first use, and again in a process that was forked from one that had them.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

TRANSFERS, SMALL_TRANSFERS, READS, QUESTIONS = 8, 16, 48, 48
LARGE = 1 << 20
"""Bytes from which on few threads transfer them: the C library retains memory of the largest size for each thread."""

_lock = threading.Lock()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}


def transfers(size: int) -> ThreadPoolExecutor:
    """The threads that transfer `size` bytes at once."""
    return _pool("mqstore-transfer", TRANSFERS) if size >= LARGE else _pool("mqstore-small", SMALL_TRANSFERS)


def reads() -> ThreadPoolExecutor:
    """The threads for concurrent small reads; reads may wait for transfers, and `questions` for reads."""
    return _pool("mqstore-read", READS)


def questions() -> ThreadPoolExecutor:
    """The threads in which functions of readers run; no such function waits for another."""
    return _pool("mqstore-question", QUESTIONS)


def _pool(name: str, count: int) -> ThreadPoolExecutor:
    key = (name, os.getpid())
    with _lock:
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(count, name)
        return _pools[key]
