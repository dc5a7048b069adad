"""Columns encoded as messages: a batch has the same bytes as its messages one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.formats.rabbitmq.amqp import properties, property_columns
from storage_core.formats.rabbitmq.message import basic_message, message_columns
from tests.reference import rabbitmq_records

HEADERS = pa.map_(pa.string(), pa.string())
TEXT = st.one_of(st.none(), st.binary(max_size=20))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "exchange": st.binary(max_size=9),
                "keys": st.lists(st.binary(max_size=9), max_size=3),
                "body": st.binary(max_size=30),
                "id": st.binary(min_size=16, max_size=16),
                "content_type": TEXT,
                "app_id": TEXT,
                "priority": st.one_of(st.none(), st.integers(0, 255)),
                "timestamp": st.one_of(st.none(), st.integers(0, 2**62)),
                "headers": st.one_of(
                    st.none(), st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3)
                ),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_batches_are_encoded_as_single_messages_are(drawn: list[dict[str, Any]], skip: int) -> None:
    def column(name: str, kind: pa.DataType) -> pa.Array:
        # A slice: the values before it must have no effect.
        return pa.array([drawn[0][name]] * skip + [row[name] for row in drawn], kind).slice(skip)

    fields = {"content_type": pa.binary(), "app_id": pa.binary(), "priority": pa.int32(), "timestamp": pa.int64()}
    given_columns = {name: column(name, kind) for name, kind in fields.items()}
    tables = column("headers", HEADERS)
    names, values = (part.cast(pa.binary()) for part in (tables.keys, tables.items))
    encoded = property_columns.encode_headers(names, values, tables.offsets.to_numpy().astype(np.int64))
    given_columns["headers"] = pc.if_else(tables.is_valid(), encoded, pa.scalar(None, pa.binary()))
    listed = property_columns.encode_properties(given_columns, len(drawn))
    terms = message_columns.encode_terms(
        b"/", column("exchange", pa.binary()), column("keys", pa.list_(pa.binary())), listed,
        column("body", pa.binary()), column("id", pa.binary()),
    )  # fmt: skip
    for row, raw, term in zip(drawn, listed.to_pylist(), terms.to_pylist(), strict=True):
        values: dict[str, Any] = {name: row[name] for name in fields}
        if row["headers"] is not None:
            values["headers"] = [(key.encode(), "S", value.encode()) for key, value in row["headers"]]
        assert raw == properties.encode(values)
        message = basic_message.Message(
            b"/", row["exchange"], tuple(row["keys"]), raw, row["body"], row["id"], True
        )  # fmt: skip
        assert term == basic_message.encode(message)


def test_segments_are_written_as_a_node_flushes_them() -> None:
    entries = [bytes([n]) * 32 for n in range(3)]
    data = message_columns.encode_segment(pa.array(entries, pa.binary()))
    assert data == b"".join(
        bytes([0xC0, n]) + entries[n] + rabbitmq_records.segment_mark(n) for n in (2, 1, 0)
    )  # fmt: skip
