"""The checkpoint: the store times up to which the log, the queues and the index are known to be on disk.

Source of the rules: rocketmq.md 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage_core.formats.layout import struct

CHECKPOINT = struct(
    "checkpoint",
    ("physic_ms", ">i8", "store time of a message known flushed in the commit log"),
    ("logics_ms", ">i8", "store time of the last message put in a consume queue"),
    ("index_ms", ">i8", "end time of the last index file that became full"),
    ("master_flushed_offset", ">i8", "5.x: what the master has flushed"),
    ("confirm_offset", ">i8", "5.x: address of the last record after a recovery"),
    size=40,
)

FILE_SIZE = 4096
GRACE_MS = 3000


@dataclass(frozen=True)
class Checkpoint:
    """The longs of a checkpoint file."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def recover_ms(self) -> int:
        """Recovery after a crash starts at the last log file that begins no later than this store time."""
        return max(0, min(self.physic_ms, self.logics_ms) - GRACE_MS)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The longs of a checkpoint file; a missing or short one is padded with zeros (interface.md 10)."""
    padded = data[: CHECKPOINT.size].ljust(CHECKPOINT.size, b"\0")
    values = np.frombuffer(padded, CHECKPOINT.dtype)[0].item()
    return Checkpoint(*values)


def encode_times(before: bytes, physic_ms: int, logics_ms: int, index_ms: int) -> bytes:
    """The file with new times; every byte after them is kept from `before`, which may be short."""
    times = np.array([physic_ms, logics_ms, index_ms], ">i8").tobytes()
    return times + before[len(times) : FILE_SIZE].ljust(FILE_SIZE - len(times), b"\0")
