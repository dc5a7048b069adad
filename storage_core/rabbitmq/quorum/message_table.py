"""Locations of the messages that a queue still holds, by raft index, while its log is replayed.

Messages that left the queue are dropped from time to time, so the table grows with the messages held, not with the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Mask

MESSAGE = np.dtype(
    [
        ("index", "i8"), ("term", "i8"), ("file", "i4"), ("position", "i8"), ("length", "i8"), ("size", "i8"),
        ("counted", "i8"), ("enqueued_ms", "i8"),
    ]
)  # fmt: skip
"""One message: its term has `length` bytes at `position` of the file, its body `size` bytes. Of its body and metadata,
`counted` bytes count for its queue."""
SMALLEST_LIMIT = 1 << 17

Messages = npt.NDArray[np.void]


class MessageTable:
    """Messages in the order of their raft indexes; `count` is their number."""

    def __init__(self) -> None:
        self._parts: list[Messages] = []
        self._firsts: list[int] = []
        self.count, self._limit = 0, SMALLEST_LIMIT

    def add(self, messages: Messages) -> None:
        """Adds messages (dtype MESSAGE), whose indexes must be above all earlier ones."""
        if len(messages):
            self._parts.append(messages)
            self._firsts.append(int(messages["index"][0]))
            self.count += len(messages)

    @property
    def is_full(self) -> bool:
        """Whether most of the table may be messages that have left the queue."""
        return self.count > self._limit

    def retain_only(self, held: Iterable[int]) -> None:
        """Drops all messages except those with these indexes."""
        wanted = np.sort(np.fromiter(held, np.int64))
        wanted = wanted[np.append(True, wanted[1:] != wanted[:-1])[: len(wanted)]]
        found, known = self.find(wanted)
        self._parts, self._firsts, self.count = [], [], 0
        self.add(found[known])
        self._limit = max(2 * self.count, SMALLEST_LIMIT)

    def find(self, indexes: npt.NDArray[np.int64]) -> tuple[Messages, Mask]:
        """A read-only row for each index, and whether the table has that message. Shapes (n,)."""
        if not self._parts:
            return np.zeros(len(indexes), MESSAGE), np.zeros(len(indexes), bool)
        if len(self._parts) > 1:
            self._parts, self._firsts = [np.concatenate(self._parts)], self._firsts[:1]
        (table,) = self._parts
        at = np.minimum(np.searchsorted(table["index"], indexes), len(table) - 1)
        follow = len(at) and (np.diff(at) == 1).all()
        found = table[at[0] : at[0] + len(at)] if follow else table[at]
        return found, found["index"] == indexes

    def counted(self, index: int) -> int:
        """The counted bytes of one message; 0 if the table does not have it."""
        at = bisect_right(self._firsts, index) - 1
        if at < 0:
            return 0
        part = self._parts[at]
        row = int(np.searchsorted(part["index"], index))
        return int(part["counted"][row]) if row < len(part) and part["index"][row] == index else 0
