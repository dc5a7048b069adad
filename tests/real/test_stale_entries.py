"""Which stale entries, after those that startup appends to a queue (rocketmq.md 3.4), both real stores serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core import open_store
from tests.real import truth
from tests.support.rocketmq_stale import KINDS, LOG_SIZE, QUEUE_SIZE, stale_store
from tests.support.sampling import WHOLE

pytestmark = [
    pytest.mark.real,
    pytest.mark.sampled,
    pytest.mark.skipif(not WHOLE, reason="two seconds for each of 14 stores; make test-real-full sets MQSTORE_WHOLE"),
]

SETTINGS = {"mappedFileSizeCommitLog": LOG_SIZE, "mappedFileSizeConsumeQueue": QUEUE_SIZE}


@pytest.mark.parametrize("version", truth.RECOVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_real_stores_serve_old_entries_again(kind: str, version: str, tmp_path: Path) -> None:
    store = stale_store(tmp_path, kind)
    stock = truth.ask(version, store, SETTINGS)
    keys = sorted((row["foundAt"][2], row["properties"]["KEYS"]) for row in stock.messages if row["topic"] == "orders")
    assert [int(key[1:]) for _, key in keys] == KINDS[kind]
    assert truth.check(store, stock, set(), 3, automatic=False) == []
    with open_store(str(store), recovery=truth.RECOVERY[version]) as opened:
        ends = {(queue.topic, queue.queue_id): queue.stop for queue in opened.queues()}
    assert truth.check_ends(stock, ends) == []
