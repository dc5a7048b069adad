"""What a node does with damage in a classic queue, as `verify` reports it. Proven on real nodes: docs/recovery.md."""

from __future__ import annotations

from dataclasses import dataclass

CRASHES = "crashes the queue"
READING = f"{CRASHES} when it reads this"
DELIVERING = f"{CRASHES} at this message"
IGNORES = "ignores it"
FORGETS = "forgets the message"
FORGETS_AT_START = "forgets them when it starts"
HIDES = "shows an empty queue, or crashes it and redelivers all"
REDELIVERS = "crashes this queue when it finds that out, then redelivers all of it"
HANGS = "hangs when it starts, with all vhosts"


@dataclass(frozen=True)
class Effect:
    """What a node does with damage after a clean stop, and when it recovers all queues, as after a kill."""

    clean: str
    recovering: str

    def after(self, clean: bool) -> str:
        """What it does after a stop that was clean or not."""
        return self.clean if clean else self.recovering


SECOND_PUBLISH = Effect(IGNORES, READING)
STRAY_DELIVER = Effect(IGNORES, HANGS)
VERSION_2_HEADER = Effect(IGNORES, f"{FORGETS}s")
VERSION_2_ENTRY = Effect(READING, READING)
VERSION_2_CUT_ENTRY = Effect(f"{IGNORES}, or {READING}", READING)
VERSION_2_NO_PLACE = Effect(f"{READING}, then {FORGETS}", FORGETS)
VERSION_2_PAST_END = Effect(DELIVERING, f"{FORGETS}s")
