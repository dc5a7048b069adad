"""Columns of messages → message terms and index records, a whole batch at a time.

The engine decides which rows may be written, and where. `basic_message.encode` encodes a single message,
`property_columns` encodes property lists. Source: rabbitmq.md 2, 3, 6.1 to 6.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import as_array
from storage_core.formats.checksum import body_crcs
from storage_core.formats.rabbitmq.binary_columns import Numbers, counted, fixed, joined, lengths, where
from storage_core.formats.rabbitmq.classic import index_records, message_file, queue_v2, segment
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.message import basic_walk
from storage_core.formats.spans import data_of, gather, offsets_of, structs_at


def encode_terms(
    vhost: bytes, exchanges: pa.BinaryArray, keys: pa.ListArray, listed: pa.BinaryArray, bodies: pa.BinaryArray,
    ids: pa.BinaryArray,
) -> pa.BinaryArray:  # fmt: skip
    """Persistent messages as terms, with the body as one fragment (none if it is empty). `keys` is list<binary>."""
    spelling = basic_walk.SPELLING
    key_counts = pc.list_value_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    raw = joined(bytes((et.BINARY,)), counted(keys.flatten(), ">u4"))
    offsets = as_array(np.concatenate(([0], np.cumsum(key_counts))).astype(np.int32))
    key_items = pc.binary_join(pa.ListArray.from_arrays(offsets, raw), b"")
    key_heads = where(key_counts > 0, joined(bytes((et.LIST,)), fixed(key_counts.astype(">u4"))))
    sizes = lengths(bodies)
    body_heads = where(sizes > 0, joined(bytes((et.LIST, 0, 0, 0, 1, et.BINARY)), fixed(sizes.astype(">u4"))))
    nil = bytes((et.NIL,))
    return joined(
        spelling.head, len(vhost).to_bytes(4, "big") + vhost + spelling.kind,
        counted(exchanges, ">u4"), key_heads, key_items, nil + spelling.content,
        counted(listed, ">u4"), spelling.protocol,
        body_heads, bodies, nil + basic_walk.ID_HEAD, ids, spelling.true,
    )  # fmt: skip


def encode_records(ids: pa.BinaryArray, terms: pa.BinaryArray) -> pa.BinaryArray:
    """Records of a message file; concatenated, they are the file."""
    sizes = lengths(terms) + message_file.ID_SIZE
    return joined(fixed(sizes.astype(">u8")), ids, terms, bytes((message_file.MARKER,)))


def encode_entries(
    ids: pa.BinaryArray, expiries: npt.NDArray[np.uint64], sizes: Numbers, terms: pa.BinaryArray
) -> pa.BinaryArray:
    """The part of each publish record after its head; `terms` are empty for messages in the shared store."""
    return joined(ids, fixed(expiries.astype(">u8")), fixed(sizes.astype(">u4")), counted(terms, ">u4"))


def encode_segment(entries: pa.BinaryArray) -> bytes:
    """A segment file of these entries at relative sequences 0, 1, …, each published and delivered, in the order of one
    flush by a node: the highest first.
    """
    count = len(entries)
    relatives = np.arange(count - 1, -1, -1, dtype=np.uint16)
    heads = fixed((relatives | segment.PUBLISH_BIT | segment.PERSISTENT_BIT).astype(">u2"))
    marks = fixed((relatives | segment.MARK_BITS).astype(">u2"))
    records = joined(heads, entries.take(as_array(relatives)), marks)
    return data_of(records)[offsets_of(records)[0] : offsets_of(records)[-1]].tobytes()


def encode_segment_v2(entries: pa.BinaryArray, entry_count: int) -> tuple[bytes, bytes]:
    """The `.qi` and the `.qs` of a version 2 segment with room for `entry_count` entries that begins with these; the
    `.qs` is empty if all messages are in the shared store. The headers are those of segment 0;
    `queue_v2.encode_header` encodes others.
    """
    ends, data = offsets_of(entries).astype(np.int64), data_of(entries)
    bodies = structs_at(data, index_records.BODY.dtype, ends[:-1])
    own = bodies["embedded_size"] > 0
    terms = gather(data, ends[:-1][own] + index_records.BODY.size, ends[1:][own])
    heads = np.zeros(len(terms), queue_v2.STORED.dtype)
    heads["size"], heads["flags"] = lengths(terms), queue_v2.FLAG_CHECKSUM
    heads["checksum"] = body_crcs(terms) & queue_v2.CHECKSUM_MASK
    stored = joined(fixed(heads), terms)
    addresses = np.zeros(len(terms), queue_v2.ADDRESS.dtype)
    addresses["position"] = queue_v2.HEADER.size + offsets_of(stored)[:-1]
    addresses["term_size"] = heads["size"]
    rows = np.zeros(len(entries), queue_v2.ENTRY.dtype)
    rows["status"], rows["flags"] = queue_v2.STATUS_ENTRY, queue_v2.FLAG_PERSISTENT
    rows["location"] = np.where(own, queue_v2.LOCATION_OWN, queue_v2.LOCATION_SHARED)
    rows["address"], rows["size"], rows["expiry"] = bodies["id"], bodies["size"], bodies["expiry"]
    rows["address"][own] = addresses.view("V16")
    index = queue_v2.encode_header(queue_v2.INDEX_MAGIC, 0, entry_count) + rows.tobytes()
    if not len(terms):
        return index, b""
    header = queue_v2.encode_header(queue_v2.STORE_MAGIC, 0, entry_count)
    return index, header + data_of(stored)[: offsets_of(stored)[-1]].tobytes()
