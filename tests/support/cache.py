"""The cache of what tests fetch or build once per checkout, and the lock for filling it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@contextmanager
def maven_alone() -> Iterator[None]:
    """Keeps all other processes and threads of this checkout's tests out of the block while it runs.

    Two Maven processes that fill one local repository corrupt each other's files.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "maven.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
