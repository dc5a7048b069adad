"""Every parser of a small file, given any bytes: a result or a FormatError, and no more memory than the bytes need.

A length of 2^31 in a file of a few hundred bytes allocates nothing.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import index_records, journal, message_file, queue_v2, segment
from storage_core.formats.rabbitmq.erlang import dets, disk_log, erlang_text, ets_dump, external_term
from storage_core.formats.rocketmq.checkpoint import decode_checkpoint, encode_times
from storage_core.formats.rocketmq.config_json import decode_config, encode_offsets, queue_counts
from storage_core.formats.rocketmq.consumequeue import decode_entries, filler_entries, leading_valid
from storage_core.formats.rocketmq.indexfile import HEADER, decode_header
from tests.support.sampling import WHOLE

pytestmark = pytest.mark.sampled

MOST = 8 << 20
"""Bytes that a parser may allocate for a few hundred bytes, including the tables of a whole segment."""
EXAMPLES = 3000 if WHOLE else 60
LENGTHS = (2**31 - 1, 2**31, 2**32 - 1, 2**30, 2**15 - 1, 0)


def _bytes(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def _records() -> bytes:
    ids = np.frombuffer(bytes(range(48)), "V16")
    bodies = index_records.publish_bodies(ids, np.zeros(3, np.int64), np.full(3, 9), [b"", b"term", b""])
    return index_records.journal_publishes(np.arange(3), np.ones(3, bool), bodies, [b"", b"term", b""])


TERM = ([1, 2.5, b"bytes"], (1 << 70, -3), [])
PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "a term": (external_term.decode, external_term.encode(TERM)),
    "the beginning of a term": (external_term.decode_prefix, external_term.encode(TERM)),
    "terms as text": (lambda data: erlang_text.parse(data.decode("utf-8", "replace")),
                      b'{segment_entry_count, 2048}.\n{a, [<<"b">>, "c", 1.5]}.\n'),
    ".config": (paths.parse_config, paths.encode_config(2048)),
    "a table on disk": (dets.decode, dets.encode([(1, b"x"), (2, [b"y"])])),
    "a disk log": (disk_log.items, disk_log.encode([external_term.encode(TERM)] * 2)),
    "the index table": (ets_dump.decode_index, ets_dump.encode_index(np.zeros(2, ets_dump.INDEX_ROW))),
    "the summary table": (ets_dump.decode_summary, ets_dump.encode_summary(np.zeros(2, ets_dump.SUMMARY_ROW))),
    "a journal": (journal.walk, _records() + journal.encode_marks(journal.ACK, np.arange(3))),
    "a segment": (segment.walk, b"\x80\x01" + bytes(range(40)) + b"\x40\x01"),
    "a message file": (lambda data: message_file.walk(_bytes(data), 0, len(data)),
                       message_file.encode(b"i" * 16, b"body") * 2),
    "a version 2 header": (lambda data: queue_v2.decode_header(_bytes(data), queue_v2.INDEX_MAGIC, 0),
                           queue_v2.encode_header(queue_v2.INDEX_MAGIC, 0)),
    "an index file's header": (lambda data: decode_header(data.ljust(HEADER.size, b"\0")), bytes(range(HEADER.size))),
    "a checkpoint": (decode_checkpoint, encode_times(b"", 1, 2, 3)),
    "entries of a queue": (lambda data: leading_valid(decode_entries(data[: len(data) // 20 * 20])),
                           filler_entries(4).tobytes()),
    "committed offsets": (decode_config, encode_offsets({"offsetTable": {"orders@group": {0: 5, 1: 7}}})),
    "topics": (lambda data: queue_counts(decode_config(data)),
               b'{"topicConfigTable":{"orders":{"readQueueNums":4,"writeQueueNums":4}}}'),
}  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, sample: bytes) -> bytes:
    """The sample with some bytes cut, duplicated, changed or replaced by a length; or any bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(("cut", "double", "byte", "length")))
        if kind == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        elif kind == "byte":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        else:
            form = draw(st.sampled_from((">I", "<I", ">Q", "<Q")))
            number = struct.pack(form, draw(st.sampled_from(LENGTHS)))
            data[at : at + len(number)] = number
    return bytes(data)


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_are_an_answer_or_a_format_error(name: str) -> None:
    parse, sample = PARSERS[name]
    parse(sample)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(changed(sample))
    def one(data: bytes) -> None:
        message = ""
        tracemalloc.start()
        try:
            parse(data)
        except FormatError as error:
            message = str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST
        assert "\n" not in message

    one()
