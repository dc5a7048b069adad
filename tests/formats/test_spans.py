"""Structs gathered from a buffer: a few one by one, many by one call to Arrow, with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.errors import FormatError
from storage_core.formats.spans import FEW, structs_at

pytestmark = pytest.mark.usefixtures("either_loops")

PAIR = np.dtype([("a", ">i4"), ("b", "u1")])
BUFFER = np.arange(200, dtype=np.uint8)


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 27])
def test_structs_are_those_of_a_strided_view(count: int) -> None:
    positions = np.arange(count)[::-1] * 7
    wanted = np.ndarray((len(BUFFER) - PAIR.itemsize + 1,), PAIR, BUFFER, strides=(1,))[positions]
    found = structs_at(BUFFER, PAIR, positions)
    assert (found.dtype, found.shape) == (PAIR, (count,))
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("count", [1, FEW + 1])
@pytest.mark.parametrize("outside", [-1, 196, 1 << 40])
def test_a_struct_outside_the_buffer_is_named(count: int, outside: int) -> None:
    positions = np.array([0] * (count - 1) + [outside])
    with pytest.raises(FormatError) as caught:
        structs_at(BUFFER, PAIR, positions)
    assert caught.value.position == outside
