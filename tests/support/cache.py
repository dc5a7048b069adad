"""What tests fetch or build once for a checkout, and who may do so."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@contextmanager
def maven_alone() -> Iterator[None]:
    """While the block runs no other process, and no other thread, of the tests of this checkout is in it.

    Two of Maven that fill one local repository spoil each other's files.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "maven.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
