"""The tags code of a record's queue entry, computed from the record. Source of the rule: rocketmq.md 3.2."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from storage_core.arrays import as_mask
from storage_core.formats.java_hash import java_hashes
from storage_core.formats.rocketmq.message import Messages
from storage_core.formats.rocketmq.paths import SCHEDULE_TOPIC
from storage_core.formats.rocketmq.properties import TAGS, delay_ms


def tags_codes(messages: Messages) -> npt.NDArray[np.int64]:
    """The tags code of each record: the hash of TAGS, or the due time of a delayed message (rocketmq.md 3.2)."""
    properties = messages.property_column()
    codes = java_hashes(properties.values(TAGS)).astype(np.int64)
    scheduled = np.flatnonzero(as_mask(pc.equal(messages.topics(), SCHEDULE_TOPIC)))
    if len(scheduled):
        delays, times = properties.values("DELAY"), messages.column("store_ms")
        for row in scheduled.tolist():
            delay = delay_ms(delays[row].as_py())
            if delay:
                codes[row] = int(times[row]) + delay
    return codes
