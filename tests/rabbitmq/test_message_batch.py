"""A batch of messages in all encodings: each has the parts that it has when decoded alone, or a reason."""

from __future__ import annotations

import random

import numpy as np

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.rabbitmq.index.entries import new_entries
from storage_core.rabbitmq.read.message_batch import TermSpans, decode_batch
from tests.rabbitmq.containers import random_terms


def test_shapes_and_terms_that_are_decoded_alone_in_one_batch() -> None:
    r = random.Random(8)
    for _ in range(15):
        terms = [term for _ in range(r.choice((1, 8, 25))) for term in random_terms(r)]
        r.shuffle(terms)
        stops = np.cumsum([len(term) for term in terms])
        buffer, starts = np.frombuffer(b"".join(terms), np.uint8), stops - [len(term) for term in terms]
        sound, none = np.ones(len(terms), bool), np.zeros(len(terms), bool)
        reasons: dict[int, str] = {}
        spans = TermSpans(buffer, starts, stops, sound, none)
        found = decode_batch(new_entries(len(terms)), spans, reasons, none, none)
        raw, messages = found.buffer.tobytes(), found.messages
        for row, term in enumerate(terms):
            try:
                wanted = basic_message.decode(term)
            except FormatError:
                assert row in reasons
                continue
            assert messages.ok[row]
            assert raw[messages.property_starts[row] : messages.property_stops[row]] == wanted.properties
            assert raw[messages.body_starts[row] : messages.body_stops[row]] == wanted.body
            assert raw[messages.exchange_starts[row] : messages.exchange_stops[row]] == wanted.exchange
