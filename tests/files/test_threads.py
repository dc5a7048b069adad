"""Items of which each is used while the next one is made, never two ahead; and two functions run concurrently."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from storage_core.files.threads import both, overlapped


def counting(made: list[int]) -> Iterator[int]:
    for number in range(50):
        made.append(number)
        yield number


def test_items_are_used_in_order_while_the_next_is_made() -> None:
    made: list[int] = []
    used: list[int] = []

    def use(number: int) -> None:
        assert number <= len(made) - 1 <= number + 1
        used.append(number)

    overlapped(counting(made), use)
    assert used == list(range(50)) == made


def test_no_item_is_made_before_the_last_but_one_is_used() -> None:
    used: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            assert len(used) >= number - 1
            yield number

    overlapped(items(), used.append)
    assert used == list(range(50))


def test_an_error_of_a_use_ends_it() -> None:
    made: list[int] = []

    def use(number: int) -> None:
        if number == 3:
            raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        overlapped(counting(made), use)
    assert made == list(range(5))


def test_an_error_of_an_item_comes_after_those_before_it() -> None:
    used: list[int] = []

    def broken() -> Iterator[int]:
        yield 1
        raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        overlapped(broken(), used.append)
    assert used == [1]


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
