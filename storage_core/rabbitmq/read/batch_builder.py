"""Builds the record batches of a request: its columns, its predicates, and how its mode treats damaged messages.

`message_batch` does the decoding, `columns` computes the values. Source: interface.md 28 to 34.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from storage_core.arrays import as_array, text_array
from storage_core.conditions import Columns, all_hold, condition
from storage_core.errors import CorruptionError
from storage_core.formats.columns import masked
from storage_core.formats.layout import Mask
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.index.entries import Entries
from storage_core.rabbitmq.read.columns import IndexColumns, message_column
from storage_core.rabbitmq.schema import CORRUPTION, READABLE
from storage_core.store import Mode, Predicate

LEAVE_OUT = "option mode=DROPMALFORMED leaves such messages out"
READ_ALL = "option mode=DROPMALFORMED reads its messages all the same"


@dataclass(frozen=True)
class RowContext:
    """What all rows of a partition share: schema, mode, names. `root` is the path of the store, for error messages.

    The entries of the partition already satisfy the `predicates` that the index alone can evaluate; the others are
    evaluated here.
    """

    schema: pa.Schema
    mode: Mode
    root: str
    store: str
    vhost: str
    queues: tuple[str, ...]
    files: tuple[str, ...]
    predicates: tuple[Predicate, ...]


class Messages(Protocol):
    """Messages that were read: entries, reasons of damaged rows by row number, rows without a message, dropped rows."""

    entries: Entries
    reasons: dict[int, str]
    absent: Mask
    dropped: Mask


class BatchBuilder:
    """Builds record batches; `left_out` counts the messages that DROPMALFORMED left out.

    `message_values` returns a column that is not one of `index_columns`, for the kind of messages that it supports.
    """

    def __init__(
        self, context: RowContext, index_columns: IndexColumns | None = None,
        message_values: Callable[[str, Any], pa.Array] = message_column,
    ) -> None:  # fmt: skip
        self.context = context
        self.left_out = 0
        self._message_values = message_values
        classic = IndexColumns(context.vhost, context.store, context.queues, context.files)
        self._index_columns = index_columns or classic
        self._conditions = [condition(predicate) for predicate in context.predicates]
        self._late = [one for one in self._conditions if not one.columns <= self._index_columns.names]

    def batch(self, messages: Messages) -> pa.RecordBatch:
        """The rows of one batch. Raises CorruptionError for the first damaged message with FAILFAST."""
        context = self.context
        damaged = np.zeros(len(messages.entries), bool)
        damaged[list(messages.reasons)] = True
        damaged &= ~messages.dropped
        if context.mode is Mode.FAILFAST and damaged.any():
            error = self._error(messages, int(np.flatnonzero(damaged)[0]))
            raise CorruptionError(error.path, error.position, f"{error.reason}; {LEAVE_OUT}")
        wanted = ~messages.dropped
        if context.mode is Mode.DROPMALFORMED:
            wanted &= ~damaged
            self.left_out += int(damaged.sum())
        columns = self._columns(messages, damaged)
        wanted &= all_hold(self._late, columns, len(wanted))
        batch = pa.RecordBatch.from_arrays([columns(name) for name in context.schema.names], schema=context.schema)
        return batch if wanted.all() else batch.filter(as_array(wanted))

    def _columns(self, messages: Messages, damaged: Mask) -> Columns:
        """Builds each column once, whether it is output or only filtered on. Columns of the message itself are null
        where there is no whole message.
        """
        made: dict[str, pa.Array] = {}
        whole = ~(damaged | messages.absent)

        def column(name: str) -> pa.Array:
            if name not in made:
                if name in self._index_columns.names:
                    made[name] = self._index_columns.values(name, messages.entries)
                elif name == CORRUPTION.name:
                    made[name] = self._corruption(messages, damaged)
                else:
                    made[name] = masked(self._message_values(name, messages), whole)
            return made[name]

        return column

    def _error(self, messages: Messages, row: int) -> CorruptionError:
        entry = messages.entries.row(row)
        path = f"{self.context.root}/{self.context.files[entry['file']]}"
        number = self._index_columns.number_name
        name = f"{number} {entry['sequence_id']} of queue {self.context.queues[entry['queue']]}"
        return CorruptionError(path, entry["position"], f"{name}: {messages.reasons[row]}")

    def _corruption(self, messages: Messages, damaged: Mask) -> pa.Array:
        texts: list[str | None] = [None] * len(damaged)
        for row in np.flatnonzero(damaged).tolist():
            texts[row] = str(self._error(messages, row))
        return text_array(texts)

    def damage_rows(self, damages: Sequence[Damage]) -> pa.RecordBatch:
        """A row for each unreadable index record that satisfies the predicates: the columns that identify it, and the
        reason; all others are null.
        """
        schema, count = self.context.schema, len(damages)

        def column(name: str) -> pa.Array:
            return pa.array([self._value(name, damage) for damage in damages], READABLE.field(name).type)

        wanted = all_hold(self._conditions, column, count)
        batch = pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)
        return batch.filter(as_array(wanted))

    def _value(self, name: str, damage: Damage) -> object:
        known = {
            "vhost": self.context.vhost,
            "store": self.context.store,
            "queue": damage.queue,
            "file": damage.file,
            "position": damage.position,
            CORRUPTION.name: str(damage.error(self.context.root)),
        }
        return known.get(name)
