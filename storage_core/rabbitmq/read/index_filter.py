"""Applies the predicates of a request before any message is read: to queues by name, to entries by index.

Predicates on the messages themselves are evaluated by `batch_builder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage_core.conditions import all_hold, condition
from storage_core.formats.layout import Mask
from storage_core.rabbitmq.index.entries import Entries, new_entries
from storage_core.rabbitmq.read.columns import IndexColumns
from storage_core.rabbitmq.schema import INDEX_COLUMNS
from storage_core.store import Predicate

QUEUE_COLUMNS = frozenset({"vhost", "queue", "store"})


class IndexFilter:
    """The predicates that the index alone can evaluate."""

    def __init__(self, predicates: Sequence[Predicate], vhost: str, store: str) -> None:
        self._vhost, self._store = vhost, store
        conditions = [condition(predicate) for predicate in predicates]
        self._of_queues = [one for one in conditions if one.columns <= QUEUE_COLUMNS]
        self._of_entries = [
            one for one in conditions if one.columns <= INDEX_COLUMNS and not one.columns <= QUEUE_COLUMNS
        ]

    def takes_queue(self, name: str) -> bool:
        """Whether a message of the queue can be in the result."""
        columns = IndexColumns(self._vhost, self._store, (name,), ())
        return bool(all_hold(self._of_queues, lambda column: columns.values(column, new_entries(1)), 1)[0])

    def mask(self, name: str, entries: Entries, files: Sequence[str]) -> Mask:
        """Which entries of the queue can be in the result; their file numbers index `files`. Shape (n,)."""
        if not self._of_entries:
            return np.ones(len(entries), bool)
        columns = IndexColumns(self._vhost, self._store, (name,), files)
        return all_hold(self._of_entries, lambda column: columns.values(column, entries), len(entries))
