"""The columns that come from the messages of streams: their own parts, and the contents of their property lists.

The property lists are those that a node delivers, so that the classic engine's columns can read them.
Source: docs/rabbitmq.md "Streams".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array, bytes_array, text_array
from storage_core.formats import spans
from storage_core.formats.layout import values_at
from storage_core.formats.rabbitmq.amqp import headers, properties
from storage_core.formats.rabbitmq.amqp.properties import FieldSpans
from storage_core.formats.rabbitmq.erlang.binary_lists import NO_ITEMS
from storage_core.formats.rabbitmq.message.message_spans import MessageSpans, nothing_noted
from storage_core.rabbitmq.read.columns import message_column
from storage_core.rabbitmq.read.message_batch import MessageBatch
from storage_core.rabbitmq.stream_queues.batch import StreamBatch

_PERSISTENT = 2


class MessageColumns:
    """The columns of messages of the queues `queues`. Decodes the property lists of a batch once."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = text_array(queues)
        self._made: tuple[StreamBatch, MessageBatch] | None = None

    def __call__(self, name: str, batch: StreamBatch) -> pa.Array:
        """Returns a column; its values for damaged rows are meaningless."""
        if name == "body":
            return spans.gather(batch.buffer, *batch.parts.body)
        if name == "size":
            return as_array(batch.parts.body[1] - batch.parts.body[0])
        if name == "rawSections":
            return spans.gather(batch.buffer, batch.starts, batch.stops)
        if name == "exchange":
            return spans.text(spans.gather(batch.buffer, *batch.parts.exchange))
        if name == "routingKeys":
            return self._routing_keys(batch)
        if name == "rawProperties":
            return batch.parts.property_lists
        if name == "persistent":
            return _persistent(self._decoded(batch))
        return message_column(name, self._decoded(batch))

    def _routing_keys(self, batch: StreamBatch) -> pa.Array:
        """The routing key of each message and those of its header CC, or the name of its queue if it has neither."""
        keys = spans.text(spans.gather(batch.buffer, *batch.parts.routing_key))
        if not batch.parts.keyed.all():
            names = self._queues.take(as_array(batch.entries["queue"]))
            keys = pc.if_else(as_array(batch.parts.keyed), keys, names)
        copies = batch.parts.copies
        if not copies:
            return pa.ListArray.from_arrays(as_array(np.arange(len(keys) + 1, dtype=np.int32)), keys)
        own = np.flatnonzero(batch.parts.keyed | ~np.isin(np.arange(len(keys)), list(copies)))
        rows = np.concatenate((own, np.repeat(list(copies), [len(each) for each in copies.values()])))
        more = spans.text(bytes_array([key for each in copies.values() for key in each]))
        items = np.concatenate((own, len(keys) + np.arange(len(more))))
        order = np.argsort(rows, kind="stable")
        offsets = np.searchsorted(rows[order], np.arange(len(keys) + 1)).astype(np.int32)
        listed = pa.concat_arrays([keys, more]).take(as_array(items[order]))
        return pa.ListArray.from_arrays(as_array(offsets), listed)

    def _decoded(self, batch: StreamBatch) -> MessageBatch:
        if self._made is None or self._made[0] is not batch:
            self._made = batch, _decoded(batch)
        return self._made[1]


def _decoded(batch: StreamBatch) -> MessageBatch:
    """The property lists of a batch as the classic engine's columns require them."""
    lists = batch.parts.property_lists
    buffer = spans.data_of(lists)
    offsets = spans.offsets_of(lists).astype(np.int64)
    found = properties.locate(buffer, offsets[:-1], offsets[1:])
    nothing = np.zeros(len(lists), np.int64)
    table = found.fields.get("headers", FieldSpans(nothing[:0], nothing[:0], nothing[:0]))
    ok = np.ones(len(lists), bool)
    messages = MessageSpans(
        ok, nothing, nothing, NO_ITEMS, offsets[:-1], offsets[1:], nothing, nothing, nothing, ok, NO_ITEMS,
        *nothing_noted(len(lists)),
    )  # fmt: skip
    located = headers.locate(buffer, table.starts, table.stops)
    return MessageBatch(
        batch.entries, buffer, messages, found, table.rows, located, batch.reasons, batch.absent, batch.dropped
    )


def _persistent(messages: MessageBatch) -> pa.Array:
    """Whether the publisher requested persistence; a stream keeps every message."""
    found = np.zeros(len(messages.entries), bool)
    modes = messages.properties.fields.get("delivery_mode")
    if modes is not None:
        found[modes.rows] = values_at(messages.buffer, "u1", modes.starts) == _PERSISTENT
    return as_array(found)
