"""The threads that wait for remote stores: one pool for the bytes, one for questions that go side by side.

Made when they are first needed, and again in a process that was forked from one that had them.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

TRANSFERS, QUESTIONS = 16, 24

_lock = threading.Lock()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}


def transfers() -> ThreadPoolExecutor:
    """The threads that bring bytes."""
    return _pool("mqstore-transfer", TRANSFERS)


def questions() -> ThreadPoolExecutor:
    """The threads in which functions of readers run; none of them waits for another one of these."""
    return _pool("mqstore-question", QUESTIONS)


def _pool(name: str, count: int) -> ThreadPoolExecutor:
    key = (name, os.getpid())
    with _lock:
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(count, name)
        return _pools[key]
