"""Finding byte strings: against `bytes.find`."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.byte_search import find_all, spans_with

few = st.binary(max_size=60).map(lambda data: bytes(65 + byte % 2 for byte in data))
needles = st.binary(min_size=4, max_size=7).map(lambda data: bytes(65 + byte % 2 for byte in data))


def everywhere(data: bytes, needle: bytes) -> list[int]:
    return [at for at in range(len(data)) if data.startswith(needle, at)]


@given(few, needles)
def test_every_place(data: bytes, needle: bytes) -> None:
    assert find_all(np.frombuffer(data, np.uint8), needle).tolist() == everywhere(data, needle)


@given(few, st.lists(needles, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_spans(data: bytes, wanted: list[bytes], pairs: list[tuple[int, int]]) -> None:
    spans = [tuple(sorted((min(a, len(data)), min(b, len(data))))) for a, b in pairs]
    starts, stops = (np.array([span[part] for span in spans], np.int64) for part in (0, 1))
    expected = [any(needle in data[start:stop] for needle in wanted) for start, stop in spans]
    assert spans_with(np.frombuffer(data, np.uint8), starts, stops, wanted).tolist() == expected
