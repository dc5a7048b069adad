"""Where records go: the vectorised arithmetic equals a loop that puts one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.rocketmq.placement import Blank, number, number_preserved, place, place_preserved

FILE = 1000
SIZES = st.lists(st.integers(91, FILE - 8), max_size=30)
STARTS = st.integers(0, 5 * FILE)


def one_by_one(sizes: list[int], start: int) -> tuple[list[int], list[Blank], int]:
    places, blanks, at = [], [], start
    for size in sizes:
        room = FILE - at % FILE
        if size + 8 > room:
            blanks.append(Blank(at, room))
            at += room
        places.append(at)
        at += size
    return places, blanks, at


@settings(deadline=None)
@given(SIZES, STARTS)
def test_places_equal_one_record_at_a_time(sizes: list[int], start: int) -> None:
    # A file never ends without its blank record, so a store's end leaves 8 bytes or lies at a file's start.
    start = start if FILE - start % FILE >= 8 else (start // FILE + 1) * FILE
    places, blanks, stop = one_by_one(sizes, start)
    got = place(np.array(sizes, np.int64), start, FILE)
    assert (got.places.tolist(), list(got.blanks), got.stop) == (places, blanks, stop)
    again = place_preserved(np.array(places, np.int64), np.array(sizes, np.int64), start, FILE)
    assert (list(again.blanks), again.stop) == (blanks, stop)


@pytest.mark.parametrize(
    ("places", "words"),
    [([0, 50], "lies before"), ([0, 150], "leaves a hole"), ([0, 100, 950], "leaves a hole"), ([1000, 950], "before")],
)
def test_records_that_do_not_follow_each_other_are_refused(places: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        place_preserved(np.array(places), np.full(len(places), 100), 0, FILE)


def test_a_record_that_crosses_the_end_of_its_file_is_refused() -> None:
    with pytest.raises(ValueError, match="commitLogFileSize"):
        place_preserved(np.array([0]), np.array([995]), 0, FILE)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40), st.lists(st.integers(0, 9), min_size=4,
                                                                                 max_size=4))  # fmt: skip
def test_ordinals_equal_one_record_at_a_time(rows: list[tuple[int, bool]], starts: list[int]) -> None:
    expected, ends = [], list(starts)
    for queue, counted in rows:
        expected.append(ends[queue] if counted else -1)
        ends[queue] += counted
    queue, counted = np.array([q for q, _ in rows], np.int64), np.array([c for _, c in rows], bool)
    ordinals = np.array(starts, np.int64)

    got = number(queue, counted, ordinals)

    assert got.values.tolist() == expected
    assert ordinals.tolist() == ends
    for index, name in enumerate(got.queues.tolist()):
        part = got.order[got.bounds[index] : got.bounds[index + 1]]
        assert (queue[part] == name).all()
        assert (np.diff(part) > 0).all()
    kept = np.array(starts, np.int64)
    same = number_preserved(queue, counted, np.maximum(got.values, 0), kept, {})
    assert same.values.tolist() == expected
    assert kept.tolist() == ends


def test_preserved_ordinals_follow_the_dispatcher() -> None:
    offsets, first = np.array([5, 6, 6, 9, 0, 8]), {}  # type: ignore[var-annotated]
    ends = np.array([-1], np.int64)
    got = number_preserved(np.zeros(6, np.int64), np.ones(6, bool), offsets, ends, first)
    assert got.values.tolist() == [5, 6, -1, 7, 8, -1]
    assert (ends.tolist(), first) == ([9], {0: 5})
