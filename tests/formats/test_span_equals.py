"""Texts compared word by word: the same result as plain comparison."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.span_equals import KnownTexts

pytestmark = pytest.mark.usefixtures("either_loops")

LETTERS = st.lists(st.sampled_from(b"ab\x00\xff"), max_size=20).map(bytes)


@given(st.lists(LETTERS, min_size=1, max_size=4), st.binary(max_size=60), st.data())
def test_equal_is_equality(texts: list[bytes], noise: bytes, data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=8))
    spans = [data.draw(st.sampled_from(texts) | LETTERS) for _ in which]
    buffer = noise + b"".join(spans)
    sizes = np.array([len(span) for span in spans], np.int64)
    starts = len(noise) + np.cumsum(sizes) - sizes
    found = KnownTexts(texts).equal(np.frombuffer(buffer, np.uint8), starts, sizes, np.array(which, np.int32))
    assert found.tolist() == [span == texts[text] for span, text in zip(spans, which, strict=True)]
