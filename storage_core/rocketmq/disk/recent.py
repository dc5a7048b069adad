"""What a process keeps of the stores that it used last, so that it need not be found out again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

MOST_STORES = 64

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V], Generic[K, V]):
    """The values of the keys that were used last, MOST_STORES at most. Threads share it."""

    def keep(self, key: K, value: V) -> V:
        """Keeps a value, new or not, as the one that was used last, and returns it."""
        self.pop(key, None)  # another thread may have dropped it
        self[key] = value
        while len(self) > MOST_STORES:
            self.popitem(last=False)
        return value
