"""One item ahead: the same items, errors in their place, never two ahead. Two functions at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from storage_core.files.read_ahead import both, one_ahead


def counting(made: list[int]) -> Iterator[int]:
    for number in range(50):
        made.append(number)
        yield number


def test_the_same_items_with_one_ahead() -> None:
    made: list[int] = []
    used = []
    for number in one_ahead(counting(made)):
        assert len(made) <= number + 2
        used.append(number)
    assert used == list(range(50)) == made


def test_an_error_comes_where_its_item_would() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError(5, "broken")

    ahead = one_ahead(broken())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="broken"):
        next(ahead)


def test_a_user_who_stops_early_ends_it() -> None:
    made: list[int] = []
    ahead = one_ahead(counting(made))
    assert [next(ahead), next(ahead)] == [0, 1]
    del ahead
    assert len(made) <= 3


def test_two_functions_run_at_the_same_time() -> None:
    barrier = threading.Barrier(2, timeout=60)

    def meet() -> None:
        barrier.wait()

    both(meet, meet)


@pytest.mark.parametrize("broken", [(0,), (1,), (0, 1)])
def test_an_error_of_either_comes_when_both_are_done(broken: tuple[int, ...]) -> None:
    done = set()

    def run(number: int) -> None:
        done.add(number)
        if number in broken:
            raise OSError(5, f"function {number}")

    with pytest.raises(OSError, match=f"function {broken[0]}"):
        both(lambda: run(0), lambda: run(1))
    assert done == {0, 1}
