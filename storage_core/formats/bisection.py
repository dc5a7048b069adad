"""Bisection over a range of numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_where(start: int, stop: int, holds: Callable[[int], bool]) -> int:
    """The first number in [start, stop) for which `holds` is true; `stop` when there is none.

    It must be false first and true from some number on; where it is not, the answer is one of the changes to true.
    """
    return bisect_left(range(max(stop, 0)), True, start, stop, key=holds)
