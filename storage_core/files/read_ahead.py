"""Two things at the same time: the next item is made while the present one is used, or two functions run.

What an item is, and how long it stays valid, belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; item n + 1 is made while item n is used, item n + 2 not before that is done.

    An error of `items` is raised where its item would have come.
    """
    end = object()
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, items, end)
            yield item  # type: ignore[misc]


def both(one: Callable[[], None], other: Callable[[], None]) -> None:
    """Runs two functions at the same time and waits for both. Raises what the first one raises, else the other."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(other)
        one()
    running.result()
