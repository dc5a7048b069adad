"""CRCs of many spans equal those of zlib, span by span, for small and large messages."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest

from storage_core.formats.checksum import MASK, body_crcs, span_crcs

pytestmark = pytest.mark.usefixtures("either_loops")


@pytest.mark.parametrize("most", [0, 1, 200, 5_000])
def test_each_span_has_the_sum_of_its_bytes(most: int) -> None:
    r = np.random.default_rng(most)
    buffer = r.integers(0, 256, 3 * most + 1, dtype=np.uint8)
    sizes = r.integers(0, most + 1, 2_500)
    starts = r.integers(0, len(buffer) - sizes + 1)
    bodies = [buffer[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=True)]
    wanted = [zlib.crc32(body) & MASK for body in bodies]

    assert span_crcs(buffer, starts, sizes).tolist() == wanted
    assert body_crcs(pa.array(bodies, pa.binary())).tolist() == wanted
    assert body_crcs(pa.array(bodies, pa.binary())[70:1_500]).tolist() == wanted[70:1_500]
    assert body_crcs(pa.array([], pa.binary())).tolist() == []
