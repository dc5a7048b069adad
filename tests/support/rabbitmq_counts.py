"""Vhost stores whose `.config` states a different number of entries per segment than they were written with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq import open_store
from tests.support.rabbitmq_harm import LARGE, SMALL, body


@dataclass(frozen=True)
class CountCase:
    """A store written with `written` entries per segment and `messages` in each queue, of which the first `acked` were
    acknowledged and the next `delivered` were delivered before the stop. `config`: the number that `.config` states
    then. `redelivered`: how many messages, from the first on, a node redelivers.
    """

    written: int
    config: int
    messages: int
    acked: int
    delivered: int
    clean: bool
    redelivered: int

    @property
    def left(self) -> int:
        """How many messages remain in each queue."""
        return self.messages - self.acked


CASES = {
    "one segment": CountCase(16, 20_000, 12, 3, 2, True, 2),
    "one segment, the most": CountCase(16, 10_000_000, 12, 0, 0, True, 0),
    "one long segment": CountCase(64, 20_000, 40, 18, 5, True, 5),
    "a shorter one that fits": CountCase(64, 50, 40, 0, 5, True, 5),
    "three segments": CountCase(16, 16, 40, 0, 5, True, 5),
    "three segments, one entry more": CountCase(16, 17, 40, 0, 0, True, 40),
    "three segments, four entries more": CountCase(16, 20, 40, 0, 5, True, 40),
    "three segments, thousands": CountCase(16, 20_000, 40, 0, 0, True, 40),
    "three segments, the most": CountCase(16, 10_000_000, 40, 0, 5, True, 40),
    "three segments, killed": CountCase(16, 20_000, 40, 0, 0, False, 40),
}
"""Observed with a 3.10.8 node."""


def make(root: Path, vhost: str, case: CountCase) -> Path:
    """Makes the store of a case: two queues, one with messages in the index and one with them in the shared store."""
    given = {"queue_index_segment_entry_count": case.written, "msg_store_file_size_limit": 60_000}
    with open_store(str(root), {"vhost": vhost, **given}) as store:
        rows = [(queue, body(queue, number)) for number in range(case.messages) for queue in (SMALL, LARGE)]
        store.append(pa.table({"queue": [queue for queue, _ in rows], "body": [data for _, data in rows]}))
        with store.queue(SMALL) as small, store.queue(LARGE) as large:
            for queue in (small, large):
                queue.ack([queue.fetch().sequence_id for _ in range(case.acked)])
                for _ in range(case.delivered):
                    queue.fetch()
                queue.sync()
            if not case.clean:
                small._vhost.abandon(RuntimeError("killed"))
    (root / paths.CONFIG_FILE).write_bytes(paths.encode_config(case.config))
    return root


def expected(case: CountCase) -> dict[str, list[tuple[bytes, bool]]]:
    """The expected bodies and redelivered flags of both queues, in order."""
    numbers = range(case.acked, case.messages)
    return {
        queue: [(body(queue, number), row < case.redelivered) for row, number in enumerate(numbers)]
        for queue in (SMALL, LARGE)
    }
