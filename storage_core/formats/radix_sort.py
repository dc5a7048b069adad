"""Sorts many numbers at once; equal ones keep their order.

What is sorted is up to the callers. numpy sorts 16-bit numbers by radix, ten times as fast as wider ones, so wider
numbers are sorted 16 bits at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.formats.layout import Positions

HALF = 16


def stable_order(values: npt.NDArray[np.int64]) -> Positions:
    """The indices that sort numbers >= 0 in ascending order. Shape (n,)."""
    most = int(values.max(initial=0))
    order: Positions = np.argsort(values.astype(np.uint16), kind="stable")
    for shift in range(HALF, most.bit_length(), HALF):
        order = order[np.argsort((values >> shift).astype(np.uint16)[order], kind="stable")]
    return order
