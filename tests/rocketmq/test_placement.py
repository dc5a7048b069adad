"""Where records are placed: the vectorised arithmetic equals a loop that places one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.rocketmq.write.placement import Blank, number, number_preserved, placement_of, preserved_placement

pytestmark = pytest.mark.usefixtures("either_loops")

FILE = 1000
SIZES = st.lists(st.integers(91, FILE - 8), max_size=30)
STARTS = st.integers(0, 5 * FILE)


def one_by_one(sizes: list[int], start: int) -> tuple[list[int], list[Blank], int]:
    physical_offsets, blanks, at = [], [], start
    for size in sizes:
        room = FILE - at % FILE
        if size + 8 > room:
            blanks.append(Blank(at, room))
            at += room
        physical_offsets.append(at)
        at += size
    return physical_offsets, blanks, at


@settings(deadline=None)
@given(SIZES, STARTS)
def test_physical_offsets_equal_one_record_at_a_time(sizes: list[int], start: int) -> None:
    # A file never ends without its blank record, so the end of a store leaves 8 bytes or is at the start of a file.
    start = start if FILE - start % FILE >= 8 else (start // FILE + 1) * FILE
    physical_offsets, blanks, stop = one_by_one(sizes, start)
    got = placement_of(np.array(sizes, np.int64), start, FILE)
    assert (got.physical_offsets.tolist(), list(got.blanks), got.stop) == (physical_offsets, blanks, stop)
    again = preserved_placement(np.array(physical_offsets, np.int64), np.array(sizes, np.int64), start, FILE)
    assert (list(again.blanks), again.stop) == (blanks, stop)


@pytest.mark.parametrize(
    ("physical_offsets", "words"),
    [
        ([0, 50], "lies before"),
        ([0, 150], "leaves a hole"),
        ([0, 100, 950], "leaves a hole"),
        ([1000, 950], "before"),
        ([0, FILE << 50], "a hole of more than 10,000 files after 100"),
    ],
)
def test_records_that_do_not_follow_each_other_are_refused(physical_offsets: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        preserved_placement(np.array(physical_offsets), np.full(len(physical_offsets), 100), 0, FILE)


def test_a_record_that_crosses_the_end_of_its_file_is_refused() -> None:
    with pytest.raises(ValueError, match="commitLogFileSize"):
        preserved_placement(np.array([0]), np.array([995]), 0, FILE)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40), st.lists(st.integers(0, 9), min_size=4,
                                                                                 max_size=4))  # fmt: skip
def test_queue_offsets_equal_one_record_at_a_time(rows: list[tuple[int, bool]], starts: list[int]) -> None:
    expected, ends = [], list(starts)
    for queue, counted in rows:
        expected.append(ends[queue] if counted else -1)
        ends[queue] += counted
    queue, counted = np.array([q for q, _ in rows], np.int64), np.array([c for _, c in rows], bool)
    queue_offsets = np.array(starts, np.int64)

    got = number(queue, counted, queue_offsets)

    assert got.values.tolist() == expected
    assert queue_offsets.tolist() == ends
    for index, name in enumerate(got.queues.tolist()):
        part = got.order[got.bounds[index] : got.bounds[index + 1]]
        assert (queue[part] == name).all()
        assert (np.diff(part) > 0).all()
    following, stops = np.array(starts, np.int64), np.arange(1, len(rows) + 1)
    same = number_preserved(queue, counted, np.maximum(got.values, 0), stops, following, {})
    assert same.values.tolist() == expected
    assert following.tolist() == ends


def test_preserved_queue_offsets_follow_the_dispatcher() -> None:
    offsets, first = np.array([5, 6, 6, 9, 0, 8]), {}  # type: ignore[var-annotated]
    following = np.array([-1], np.int64)
    got = number_preserved(np.zeros(6, np.int64), np.ones(6, bool), offsets, np.arange(1, 7), following, first)
    assert got.values.tolist() == [5, 6, -1, 7, 8, -1]
    assert (following.tolist(), first) == ([9], {0: 5})
