"""Searches for byte strings, compared with searches by `bytes`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats import byte_search
from storage_core.formats.byte_search import find_all, spans_with

few = st.binary(max_size=60).map(lambda data: bytes(65 + byte % 2 for byte in data))
needles = st.binary(min_size=4, max_size=7).map(lambda data: bytes(65 + byte % 2 for byte in data))


def everywhere(data: bytes, needle: bytes) -> list[int]:
    return [at for at in range(len(data)) if data.startswith(needle, at)]


@given(few, needles)
def test_every_place(data: bytes, needle: bytes) -> None:
    assert find_all(np.frombuffer(data, np.uint8), needle).tolist() == everywhere(data, needle)


def test_many_hits_and_few_are_reported_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library finds up to a number of hits; a search by words finds the rest, or all without that function."""
    buffer = np.random.default_rng(1).integers(65, 67, 5_000).astype(np.uint8)
    hits = {needle: everywhere(buffer.tobytes(), needle) for needle in (b"ABAB", b"ABABABBA", b"A" * 11)}
    assert {len(each) > byte_search.MOST_HITS for each in hits.values()} == {True, False}
    for function in (byte_search._memmem, None):
        monkeypatch.setattr(byte_search, "_memmem", function)
        assert {needle: find_all(buffer, needle).tolist() for needle in hits} == hits
    assert find_all(np.empty(0, np.uint8), b"AAAA").tolist() == []


def test_a_buffer_with_few_hits_is_searched_by_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    memmem = byte_search._memmem

    def counted(start: int, size: int, needle: bytes, length: int) -> int | None:
        calls.append(size)
        return memmem(start, size, needle, length)  # type: ignore[misc]

    monkeypatch.setattr(byte_search, "_memmem", counted)
    monkeypatch.setattr(byte_search, "_by_words", None)
    buffer = np.zeros(1 << 20, np.uint8)
    for at in (0, 4_097, (1 << 20) - 5):
        buffer[at : at + 5] = np.frombuffer(b"ORD-1", np.uint8)
    assert find_all(buffer, b"ORD-1").tolist() == [0, 4_097, (1 << 20) - 5]
    assert len(calls) == 4


@given(few, st.lists(needles, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_spans(data: bytes, wanted: list[bytes], pairs: list[tuple[int, int]]) -> None:
    spans = [tuple(sorted((min(a, len(data)), min(b, len(data))))) for a, b in pairs]
    starts, stops = (np.array([span[part] for span in spans], np.int64) for part in (0, 1))
    expected = [any(needle in data[start:stop] for needle in wanted) for start, stop in spans]
    assert spans_with(np.frombuffer(data, np.uint8), starts, stops, wanted).tolist() == expected
