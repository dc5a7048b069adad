"""Batches of index records and of message terms, compared with their one-by-one twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.formats.rabbitmq.classic import index_records
from storage_core.formats.rabbitmq.classic.index_records import ACKED, DELIVERED, PERSISTENT, PUBLISHED
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message
from storage_core.formats.rabbitmq.message.message_template import MessageTemplate
from tests.reference import rabbitmq_records

ENTRIES = st.lists(
    st.tuples(
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**62),
        st.integers(0, 2**31),
        st.binary(max_size=40),
        st.booleans(),
        st.sampled_from([PUBLISHED, PUBLISHED | DELIVERED, DELIVERED, ACKED, DELIVERED | ACKED]),
    ),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(ENTRIES, st.integers(0, 2**61))
def test_batches_are_their_single_records(entries: list[tuple[bytes, int, int, bytes, bool, int]], first: int) -> None:
    ids = np.frombuffer(b"".join(entry[0] for entry in entries), "V16")
    expiries, sizes = (np.array([entry[at] for entry in entries], np.int64) for at in (1, 2))
    terms = [entry[3] for entry in entries]
    persistent = np.array([entry[4] for entry in entries], np.bool_)
    bodies = index_records.publish_bodies(ids, expiries, sizes, terms)
    sequence_ids = first + np.arange(len(entries))
    single = [
        rabbitmq_records.journal_publish(sequence_id, kept, message_id, expiry, size, term)
        for sequence_id, (message_id, expiry, size, term, kept, _) in zip(sequence_ids.tolist(), entries, strict=True)
    ]
    assert index_records.journal_publishes(sequence_ids, persistent, bodies, terms) == b"".join(single)

    relatives = np.arange(len(entries))[::-1] * 3
    flags = np.array([entry[5] | (PERSISTENT if entry[4] else 0) for entry in entries], np.uint8)
    kept_terms = [term if flag & PUBLISHED else None for term, flag in zip(terms, flags.tolist(), strict=True)]
    expected = b""
    for relative, (message_id, expiry, size, term, kept, flag) in zip(relatives.tolist(), entries, strict=True):
        if flag & PUBLISHED:
            expected += rabbitmq_records.segment_publish(relative, kept, message_id, expiry, size, term)
        expected += rabbitmq_records.segment_mark(relative) * (bool(flag & DELIVERED) + bool(flag & ACKED))
    assert index_records.segment_block(relatives, flags, bodies, kept_terms) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=300), max_size=8),
    st.lists(st.binary(max_size=20), max_size=3),
    st.binary(max_size=30),
    st.booleans(),
)
def test_a_template_makes_the_terms(bodies: list[bytes], keys: list[bytes], listed: bytes, persistent: bool) -> None:
    ids = b"".join(number.to_bytes(16, "big") for number in range(len(bodies)))
    template = MessageTemplate(b"/", b"amq.topic", keys, listed, persistent)
    expected = [
        basic_message.encode(
            Message(b"/", b"amq.topic", tuple(keys), listed, body, ids[16 * n : 16 * n + 16], persistent)
        )
        for n, body in enumerate(bodies)
    ]
    assert template.terms(bodies, ids) == expected
