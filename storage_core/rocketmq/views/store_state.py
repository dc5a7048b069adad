"""How a RocketMQ store was left: running, stopped or crashed, and what a broker's start would cut.

Source of the rules: rocketmq.md 5.2, 5.4, interface.md 8.
"""

from __future__ import annotations

import os

from storage_core.files.lock import is_locked
from storage_core.formats.rocketmq import paths
from storage_core.rocketmq.disk.config_files import delay_offsets
from storage_core.rocketmq.read.snapshot import RocketSnapshot
from storage_core.rocketmq.recovery.recovery import Rules
from storage_core.rocketmq.verify.folders import wrong_files
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.store import StoreState

VERSIONS = {Rules.V4: "4.9", Rules.V5: "5.x", Rules.NONE: "none"}


def store_state(snapshot: RocketSnapshot, unfinished_write: bool) -> StoreState:
    """The state of the store of a snapshot. Walks the log as recovery does."""
    listing, verdict = snapshot.served.listing, snapshot.served.verdict
    cut = snapshot.bytes_after_end()
    return StoreState(
        version=VERSIONS[verdict.rules],
        running=is_locked(os.path.join(listing.root, paths.LOCK)),
        clean=not listing.abort,
        cut_bytes=cut,
        cut_offset=verdict.log_end if cut else None,
        unfinished_write=unfinished_write,
        delay_offsets=delay_offsets(listing.root),
        repairable=bool(cut) or any(finding.repairable for finding in wrong_files(Subject(listing, verdict))),
    )
