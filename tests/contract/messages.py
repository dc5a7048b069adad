"""The messages of the stores that the tests read and write."""

from __future__ import annotations

import random

from tests.contract.engine import FIRST_SECOND, Message, Seen

COUNTS = {"alpha": 40, "beta": 23, "gamma": 1}
TEXTS = (None, "red", "green", "blue", "greenish")


def messages_of(counts: dict[str, int], seed: int = 1) -> list[Message]:
    """The given number of messages of each queue, shuffled; each body is different and begins with a unique word."""
    chance = random.Random(seed)
    queues = [queue for queue, count in counts.items() for _ in range(count)]
    chance.shuffle(queues)
    return [
        Message(
            queue,
            f"{seed}-{number:05d} of {queue} ".encode() + bytes([65 + number % 26]) * chance.randrange(100, 400),
            TEXTS[number % len(TEXTS)],
            FIRST_SECOND + number,
        )
        for number, queue in enumerate(queues)
    ]


def numbered(messages: list[Message]) -> list[Seen]:
    """The messages of a store that was written by one job, sorted: the first of each queue has offset 0."""
    counts: dict[str, int] = {}
    found: list[Seen] = []
    for message in messages:
        offset = counts.get(message.queue, 0)
        counts[message.queue] = offset + 1
        found.append((message.queue, offset, message.body))
    return sorted(found)


NEW = messages_of({"alpha": 9, "beta": 4, "omega": 17}, seed=2)
"""The messages that the tests write."""
