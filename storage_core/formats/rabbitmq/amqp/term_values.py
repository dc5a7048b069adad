"""Converts many header values at once from Erlang terms to values of field tables.

Lists are left to the callers that walk them. Source: rabbitmq.md 6.3 and 6.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.arrays import NO_BYTES, bytes_array
from storage_core.formats.layout import Bytes, Mask, Positions
from storage_core.formats.rabbitmq.amqp import field_table
from storage_core.formats.rabbitmq.binary_columns import counted, fixed, placed
from storage_core.formats.rabbitmq.erlang.cursor import Cursor
from storage_core.formats.rabbitmq.erlang.simple_terms import SimpleTerms
from storage_core.formats.spans import gather

_TEXTS, _BOOLEAN, _VOID = b"Sx", ord("t"), ord("V")
_WHOLE = {ord(letter): np.dtype(packer.format) for letter, packer in field_table.NUMBERS.items() if letter not in "fd"}
"""Types of integers, by letter."""


def encode_values(buffer: Bytes, letters: npt.NDArray[np.int64], starts: Positions) -> tuple[pa.BinaryArray, Mask]:
    """The values, without their letters, of the terms whose tags are at `starts`, and which terms have the type of
    their letter and are supported here. The values of other terms are meaningless.
    """
    right, parts = np.zeros(len(letters), bool), [(np.empty(0, np.int64), bytes_array([]))]
    for letter in np.unique(letters).tolist():
        at = np.flatnonzero(letters == letter)
        terms = SimpleTerms(Cursor(buffer, starts[at], np.full(len(at), len(buffer))))
        if letter in _TEXTS:
            right[at] = terms.is_binary
            spans = [np.where(terms.is_binary, column, 0) for column in (terms.starts, terms.stops)]
            parts.append((at, counted(gather(buffer, spans[0], spans[1]), ">u4")))
        elif letter == _BOOLEAN:
            true = terms.is_named("true")
            right[at] = true | terms.is_named("false")
            parts.append((at, fixed(true.astype("u1"))))
        elif letter == _VOID:
            right[at] = terms.is_named("undefined")
        elif letter in _WHOLE:
            kind, (numbers, known) = _WHOLE[letter], terms.integers()
            made = numbers.astype(kind)
            right[at] = known & (made.astype(np.int64) == numbers) & ((numbers >= 0) | (kind.kind == "i"))
            parts.append((at, fixed(made)))
    return placed(parts, len(right)).fill_null(NO_BYTES), right
