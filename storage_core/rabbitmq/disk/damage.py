"""One damaged part of a vhost's store, as reads report it and `view=damage` lists it."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.errors import CorruptionError
from storage_core.rabbitmq.disk.effects import Effect

CUT = "starts; what is named is not served"
"""What a node does with damage in its logs that is not `served`."""


@dataclass(frozen=True)
class Damage:
    """`file` is relative to the store; `length` bytes from `position` on, 0 if unknown; `queue` None: of no queue.

    `served` is False for what a node's own recovery silently drops: not an error of a read, but worth knowing.
    `awaited` is the sequence id of a message that a running node may be about to write. `harmless`: a read that
    tolerates damage omits no message because of it. `effect` is what a node does with it if that differs from other
    damage of its kind, `note` what an error states about that.
    """

    file: str
    position: int
    length: int
    kind: str
    reason: str
    queue: str | None = None
    served: bool = True
    awaited: int | None = None
    harmless: bool = False
    effect: Effect | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """The reason and the note."""
        return f"{self.reason}; {self.note}" if self.note else self.reason

    def error(self, root: str) -> CorruptionError:
        """The error of a read that does not tolerate damage."""
        return CorruptionError(f"{root}/{self.file}", self.position, self.text)
