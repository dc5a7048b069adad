"""The stable order of numbers, compared with numpy's own sort of wide ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.radix_sort import stable_order

few = st.integers(0, 5)
wide = st.one_of(few, st.integers(0, 1 << 17), st.integers(0, (1 << 62) - 1))


@given(st.lists(st.one_of(few, wide), max_size=200))
def test_as_a_stable_sort(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()
