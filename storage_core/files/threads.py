"""Does two things at the same time: uses an item while the next one is made, or runs two functions.

What an item is, and how long it stays valid, is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def overlapped(items: Iterator[Item], use: Callable[[Item], None]) -> None:
    """Uses each item, in order, in a thread while the next one is made; item n + 2 is not made before n is used.

    An error in `use` for item n is raised before item n + 2 is made.
    """
    with ThreadPoolExecutor(1) as thread:
        running = None
        for item in items:
            if running is not None:
                running.result()
            running = thread.submit(use, item)
        if running is not None:
            running.result()


def both(one: Callable[[], None], other: Callable[[], None]) -> None:
    """Runs two functions at the same time and waits for both. Raises what the first one raises, else the other."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(other)
        one()
    running.result()
