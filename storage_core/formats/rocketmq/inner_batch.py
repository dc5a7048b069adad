"""Inner batches of 5.x: splits a record that holds several messages into a record for each of them.

A broker keeps and serves the batch whole, and its client takes it apart. Source of the rules: rocketmq.md 2.8.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Bytes, Mask, Positions, struct, values_at
from storage_core.formats.rocketmq.encode import Rows, encode
from storage_core.formats.rocketmq.message import COMPRESSED, Messages
from storage_core.formats.spans import gather

INNER_BATCH = 0xC0
"""The SYSFLAG bits of an inner batch that a client takes apart; both are set."""

INNER_MESSAGE = struct(
    "message of an inner batch",
    ("total_size", ">i4", "length up to the end of the properties; a client does not look at it"),
    ("magic", ">i4", "0"),
    ("body_crc", ">i4", "0"),
    ("flag", ">i4", "FLAG of this message"),
    ("body_length", ">i4", "the body follows, then two bytes of length and the properties"),
    size=20,
)


@dataclass(frozen=True)
class Unwrapped:
    """Records of `buffer`: in place of each inner batch that could be taken apart, its messages.

    Record i is message number `ordinals[i]` of the given record `rows[i]`. In the order of the given records; shape
    (m,) each.
    """

    buffer: Bytes
    starts: Positions
    sizes: Positions
    rows: Positions
    ordinals: Positions


@dataclass(frozen=True)
class _Inner:
    """Messages of inner batches: row of the batch, number in it, position, and sizes of the parts. Shape (m,) each."""

    rows: Positions
    ordinals: Positions
    heads: Positions
    body_size: Positions
    properties_size: Positions


def _are_batches(sys_flags: npt.NDArray[np.int32]) -> Mask:
    """Which records are inner batches. A compressed one counts as one message: no client compresses batches."""
    found: Mask = (sys_flags & (INNER_BATCH | COMPRESSED)) == INNER_BATCH
    return found


def unwrapped(messages: Messages, sizes: Positions, verify_crc: bool) -> Unwrapped | None:
    """The records with each inner batch taken apart; None if no batch can be.

    A message has the topic, queue, times, hosts and address of its batch, and the batch's queue offset plus its own
    number; flag, body and properties are its own. A batch stays whole if it is flawed, or if its body is not a sequence
    of messages or, with `verify_crc`, does not match BODYCRC.
    """
    batches = _are_batches(messages.column("sys_flag")) & (messages.flaws == 0)
    if not batches.any():
        return None
    if verify_crc:
        batches &= ~messages.wrong_bodies()
    inner = _inner_messages(messages, np.flatnonzero(batches))
    if not len(inner.rows):
        return None
    encoded = encode(_rows(messages, inner))
    made = np.frombuffer(encoded.data, np.uint8)
    kept = np.ones(len(messages), bool)
    kept[inner.rows] = False
    others = np.flatnonzero(kept)
    rows = np.concatenate((others, inner.rows))
    order = np.argsort(rows, kind="stable")
    starts = np.concatenate((messages.starts[others], len(messages.buffer) + encoded.bounds[:-1].astype(np.int64)))
    return Unwrapped(
        np.concatenate((messages.buffer, made)),
        starts[order],
        np.concatenate((sizes[others], encoded.sizes))[order],
        rows[order],
        np.concatenate((np.zeros(len(others), np.int64), inner.ordinals))[order],
    )


def _inner_messages(messages: Messages, rows: Positions) -> _Inner:
    """The messages of the batches `rows`, by row and number; each step finds the next message of every batch."""
    buffer, found = messages.buffer, list[_Inner]()
    at, stop = messages.body_start[rows], (messages.body_start + messages.body_size)[rows]
    broken = np.zeros(len(messages), bool)
    while len(rows):
        body_size = values_at(buffer, ">i4", at + INNER_MESSAGE.field("body_length").offset).astype(np.int64)
        body_end = at + INNER_MESSAGE.size + body_size
        properties_size = values_at(buffer, ">i2", body_end).astype(np.int64)
        after = body_end + 2 + properties_size
        right = (body_size >= 0) & (body_end + 2 <= stop) & (properties_size >= 0) & (after <= stop)
        broken[rows[~right]] = True
        ordinals = np.full(len(rows), len(found))
        found.append(_Inner(rows[right], ordinals[right], at[right], body_size[right], properties_size[right]))
        more = right & (after < stop)
        rows, at, stop = rows[more], after[more], stop[more]
    parts = [np.concatenate([getattr(one, each.name) for one in found] or [rows]) for each in fields(_Inner)]
    whole = np.flatnonzero(~broken[parts[0]])
    order = whole[np.argsort(parts[0][whole], kind="stable")]
    return _Inner(*(part[order] for part in parts))


def _rows(messages: Messages, inner: _Inner) -> Rows:
    batches, buffer = messages.take(inner.rows), messages.buffer
    bodies = inner.heads + INNER_MESSAGE.size
    properties = bodies + inner.body_size + 2
    return Rows(
        topics=batches.topics().dictionary_encode(),
        bodies=gather(buffer, bodies, bodies + inner.body_size),
        properties=gather(buffer, properties, properties + inner.properties_size),
        born_hosts=batches.hosts("born"),
        store_hosts=batches.hosts("store"),
        queue_id=batches.column("queue_id"),
        flag=values_at(buffer, ">i4", inner.heads + INNER_MESSAGE.field("flag").offset).astype(np.int32),
        sys_flag=batches.column("sys_flag") & ~INNER_BATCH,
        born_ms=batches.column("born_ms"),
        reconsume_times=0,
        queue_offset=batches.column("queue_offset") + inner.ordinals,
        physical_offset=batches.column("physical_offset"),
        store_ms=batches.column("store_ms"),
        prepared_offset=0,
    )
