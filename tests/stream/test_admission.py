"""Shares of a micro-batch: never more than the limit, all of it if enough messages wait, and no queue starves."""

from __future__ import annotations

import random

import pytest

from storage_core.stream.admission import by_bytes, by_count, fair_shares
from tests.stream.fixed_snapshot import FixedSnapshot


@pytest.mark.parametrize(
    ("sizes", "most", "turn", "shares"),
    [
        ([10, 10], 10, 0, [5, 5]),
        ([10, 10], 100, 0, [10, 10]),
        ([30, 10], 20, 0, [15, 5]),
        ([1_000_000, 1, 1], 100, 0, [98, 1, 1]),
        ([5, 0, 5], 1, 0, [1, 0, 0]),
        ([5, 0, 5], 1, 1, [0, 0, 1]),
        ([0, 0], 5, 3, [0, 0]),
        ([1 << 62, 1 << 62], 1 << 40, 0, [1 << 39, 1 << 39]),
    ],
)
def test_shares(sizes: list[int], most: int, turn: int, shares: list[int]) -> None:
    assert fair_shares(sizes, most, turn) == shares


def test_shares_add_up_whatever_waits() -> None:
    chance = random.Random(5)
    for _ in range(2000):
        sizes = [chance.choice((0, 1, 3, chance.randrange(10_000))) for _ in range(chance.randrange(1, 9))]
        most = chance.randrange(1, 12_000)
        shares = fair_shares(sizes, most, chance.randrange(100))
        assert sum(shares) == min(most, sum(sizes))
        assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
        if most >= sum(size > 0 for size in sizes):
            assert all(share for share, size in zip(shares, sizes, strict=True) if size)


def test_queues_take_turns_where_the_limit_does_not_go_round() -> None:
    left, read = [3] * 7 + [1000], 0
    while any(left[:7]):
        shares = fair_shares(left, 2, read)
        left = [size - share for size, share in zip(left, shares, strict=True)]
        read += sum(shares)
    assert read <= 2 * 3 * 8, "a long queue made the short ones wait for longer than its turn"


def test_bytes_are_shared_and_one_message_always_goes() -> None:
    held = {("a", 0): (0, 50), ("b", 0): (0, 50), ("c", 0): (6, 6)}
    snapshot = FixedSnapshot(held)
    starts, stops = ({key: span[side] for key, span in held.items()} for side in (0, 1))
    assert by_bytes(snapshot, starts, stops, 100) == {("a", 0): 5, ("b", 0): 5, ("c", 0): 6}
    assert by_bytes(snapshot, starts, stops, 10_000) == stops
    assert by_bytes(snapshot, starts, stops, 3) == {("a", 0): 1, ("b", 0): 0, ("c", 0): 6}
    starts[("a", 0)] = 1
    assert by_bytes(snapshot, starts, stops, 3) == {("a", 0): 1, ("b", 0): 1, ("c", 0): 6}


def test_counts_are_shared() -> None:
    held = {("a", 0): (10, 60), ("b", 0): (0, 50), ("c", 0): (7, 7)}
    starts, stops = ({key: span[side] for key, span in held.items()} for side in (0, 1))
    assert by_count(FixedSnapshot(held), starts, stops, 10) == {("a", 0): 15, ("b", 0): 5, ("c", 0): 7}
