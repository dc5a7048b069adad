"""Message ids as a RocketMQ client makes them, for rows that have none (rocketmq.md 2.10)."""

from __future__ import annotations

import datetime
import os
import secrets
import time

import numpy as np
import pyarrow as pa

_LOOPBACK = b"\x7f\x00\x00\x01"
_COUNTERS = 1 << 16


def new_ids(count: int) -> pa.StringArray:
    """`count` new ids of 32 hex digits: address, process, four random bytes, time, counter."""
    head = _LOOPBACK + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
    now = datetime.datetime.now(datetime.UTC)
    month = datetime.datetime(now.year, now.month, 1, tzinfo=datetime.UTC)
    first = int(time.time() * 1000) - int(month.timestamp() * 1000)
    numbers = np.arange(count)
    tail = np.empty(count, [("ms", ">u4"), ("counter", ">u2")])
    tail["ms"], tail["counter"] = first + numbers // _COUNTERS, numbers % _COUNTERS
    prefix, digits = head.hex().upper(), tail.tobytes().hex().upper()
    return pa.array([prefix + digits[at : at + 12] for at in range(0, 12 * count, 12)], pa.string())
