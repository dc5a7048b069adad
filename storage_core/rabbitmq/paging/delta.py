"""The middle of a queue that is known only by its range of sequence ids: everything in it is on disk.

`queue_state` loads it back. Source: rabbitmq.md 7.1 and 7.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.formats.layout import Mask
from storage_core.rabbitmq.index.message_run import SequenceIds


@dataclass(frozen=True)
class Delta:
    """`count` messages, `transient` of them transient, within [start, stop); both bounds are None at first."""

    start: int | None = None
    count: int = 0
    transient: int = 0
    stop: int | None = None

    @property
    def blank(self) -> bool:
        """Whether no messages are left, and no sequence ids to walk over."""
        return self.count == 0 and self.transient == 0 and self.start == self.stop

    def expanded(self, sequence_ids: SequenceIds, transient: Mask) -> Delta:
        """The delta with the messages `sequence_ids` added (at least one, none of them in the delta yet)."""
        low, high = int(sequence_ids.min()), int(sequence_ids.max()) + 1
        if not self.blank and self.start is not None and self.stop is not None:
            low, high = min(low, self.start), max(high, self.stop)
        return Delta(low, self.count + len(sequence_ids), self.transient + int(transient.sum()), high)
