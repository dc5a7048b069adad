"""The threads that wait for remote stores: a pool for bytes, one for small reads, one for questions.

Made when they are first needed, and again in a process that was forked from one that had them.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

TRANSFERS, READS, QUESTIONS = 16, 48, 48

_lock = threading.Lock()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}


def transfers() -> ThreadPoolExecutor:
    """The threads that bring bytes."""
    return _pool("mqstore-transfer", TRANSFERS)


def reads() -> ThreadPoolExecutor:
    """The threads in which small reads go side by side; they may wait for transfers, questions for them."""
    return _pool("mqstore-read", READS)


def questions() -> ThreadPoolExecutor:
    """The threads in which functions of readers run; none of them waits for another one of these."""
    return _pool("mqstore-question", QUESTIONS)


def _pool(name: str, count: int) -> ThreadPoolExecutor:
    key = (name, os.getpid())
    with _lock:
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(count, name)
        return _pools[key]
