"""The views of a store: their names, their columns, and their rows in batches.

The `views` of each queue type produce the rows. Source: docs/rabbitmq.md "Views".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import pyarrow as pa

from storage_core.errors import OptionError, closest
from storage_core.store import ScanRequest, Snapshot

BATCH_ROWS = 8192

Row = dict[str, Any]
Taken = TypeVar("Taken", bound=Snapshot)
View = tuple[pa.Schema, Callable[[Taken, ScanRequest], Iterator[Row]]]


class ViewTable(Generic[Taken]):
    """The `views` by name: for each its columns, and a function that returns its rows, without the column `store`."""

    def __init__(self, whose: str, views: Mapping[str, View[Taken]]) -> None:
        self._whose, self._views = whose, views

    def schema_of(self, name: str) -> pa.Schema:
        """Schema of the view `name`. Raises OptionError, which lists the existing views, if there is none."""
        if name not in self._views:
            near = closest(name, list(self._views))
            hint = f"did you mean {near[0]}? " if near else ""
            names = ", ".join(self._views)
            raise OptionError("view", name, f"{hint}The views of {self._whose} are messages, {names}")
        return self._views[name][0]

    def rows_of(self, name: str, snapshot: Taken, store: str, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """The rows of the view `name`, in at least one batch, restricted to the queues that the request selects."""
        schema, rows = self._views[name]
        named = ({**row, "store": request.store_name or store} for row in rows(snapshot, request))
        listed = list(islice(named, BATCH_ROWS))
        yield pa.RecordBatch.from_pylist(listed, schema=schema)
        while listed := list(islice(named, BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(listed, schema=schema)
