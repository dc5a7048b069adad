"""Columns of properties → AMQP 0-9-1 property lists, a whole batch at a time.

`properties.encode` encodes a single list. Source: rabbitmq.md 6.4.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.arrays import NO_BYTES, NUMPY_TYPES, as_array, as_mask, as_numbers
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.binary_columns import Numbers, counted, fixed, joined, where


def encode_headers(names: pa.BinaryArray, values: pa.BinaryArray, bounds: Numbers) -> pa.BinaryArray:
    """Tables of long strings, without their length prefix; table i has the items [bounds[i], bounds[i + 1])."""
    entries = joined(counted(names, "u1"), b"S", counted(values.fill_null(NO_BYTES), ">u4"))
    return pc.binary_join(pa.ListArray.from_arrays(as_array(bounds.astype(np.int32)), entries), NO_BYTES)


def encode_properties(columns: Mapping[str, pa.Array], row_count: int) -> pa.BinaryArray:
    """Property lists from columns named as in `properties.FIELDS`: binary for short strings, encoded tables for
    `headers`, integers for the others. A null means the field is absent. All values must fit: see `properties.encode`.
    """
    flags = np.zeros(row_count, np.uint16)
    parts: list[pa.Array | bytes] = []
    for index, (name, kind) in enumerate(properties.FIELDS):
        column = columns.get(name)
        if column is None or column.null_count == row_count:
            continue
        present = as_mask(column.is_valid())
        flags |= present.astype(np.uint16) << (15 - index)
        if kind in {properties.SHORT, properties.TABLE}:
            part = counted(column.fill_null(NO_BYTES), "u1" if kind == properties.SHORT else ">u4")
        else:
            zero = as_array(np.zeros(1, NUMPY_TYPES[column.type]))[0]
            values = as_numbers(column.fill_null(zero))
            part = fixed(values.astype("u1" if kind == properties.OCTET else ">u8"))
        parts.append(where(present, part))
    return joined(fixed(flags.astype(">u2")), *parts)
