"""How much of the backlog goes into one micro-batch: fair shares of a number of messages, or of bytes.

Pure arithmetic over a snapshot's queues. Source of the rules: interface.md 43.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage_core.store import QueueKey
from storage_core.stream.tail import StreamSnapshot

Positions = Mapping[QueueKey, int]


def fair_shares(sizes: Sequence[int], most: int, turn: int) -> list[int]:
    """Shares `most` out over queues with backlogs of `sizes`: the sum is min(most, sum(sizes)), and no share exceeds
    its backlog.

    Each queue first gets one, as far as `most` allows; the rest is shared in proportion to the backlogs. If there is
    not enough for every queue, they take turns: `turn` is any number that grows with what was read.
    """
    if sum(sizes) <= most:
        return list(sizes)
    waiting = [number for number, size in enumerate(sizes) if size]
    first = turn % len(waiting)
    order = waiting[first:] + waiting[:first]
    shares = [0] * len(sizes)
    for number in order[:most]:
        shares[number] = 1
    left = most - min(most, len(order))
    rest = sum(sizes) - len(order)
    if left:
        for number in order:
            shares[number] += left * (sizes[number] - 1) // rest
    missing = most - sum(shares)
    for number in order:
        if missing and shares[number] < sizes[number]:
            shares[number] += 1
            missing -= 1
    return shares


def by_count(snapshot: StreamSnapshot, starts: Positions, stops: Positions, most: int) -> dict[QueueKey, int]:
    """Stops that admit at most `most` messages."""
    keys = list(stops)
    sizes = [snapshot.count(key, starts[key], stops[key]) for key in keys]
    shares = fair_shares(sizes, most, sum(starts.values()))
    return {
        key: stops[key] if share == size else snapshot.after(key, starts[key], share)
        for key, size, share in zip(keys, sizes, shares, strict=True)
    }


def by_bytes(snapshot: StreamSnapshot, starts: Positions, stops: Positions, most: int) -> dict[QueueKey, int]:
    """Stops that admit at most `most` bytes of records, but at least one message if any is waiting."""
    keys = [key for key in stops if stops[key] > starts[key]]
    found = dict(stops)
    if not keys:
        return found
    sizes = [snapshot.count(key, starts[key], stops[key]) for key in keys]
    total = sum(sizes)
    left = most
    for key, size in zip(keys, sizes, strict=True):
        found[key], taken = snapshot.fitting(key, starts[key], stops[key], most * size // max(total, 1))
        left -= taken
    first = sum(starts.values()) % len(keys)
    for key in keys[first:] + keys[:first]:
        found[key], taken = snapshot.fitting(key, found[key], stops[key], left)
        left -= taken
    if all(found[key] == starts[key] for key in keys):
        key = keys[first]
        found[key] = min(stops[key], snapshot.after(key, starts[key], 1))
    return found
