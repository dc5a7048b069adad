"""Bisection over a range of numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_where(start: int, stop: int, holds: Callable[[int], bool]) -> int:
    """The first number in [start, stop) for which `holds` is true; `stop` if there is none.

    `holds` must be false up to some number and true from there on. Otherwise the result is one of the places where it
    changes to true.
    """
    return bisect_left(range(max(stop, 0)), True, start, stop, key=holds)
