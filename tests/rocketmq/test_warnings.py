"""What a read of a store says that its rows do not: queues that are not read, topics that a broker serves otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from storage_core import open_store
from tests.support.rocketmq_writes import GEOMETRY, rows, write


def warnings(directory: Path) -> Sequence[str]:
    with open_store(str(directory)) as store:
        return store.snapshot().warnings()


def test_compacted_topics_and_batch_queues(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    write(directory, rows(9, topics=("audit", "orders")), queues=1, **GEOMETRY)
    assert warnings(directory) == []
    for name in ("audit", "orders"):
        (directory / "compaction" / "compactionLog" / name / "0").mkdir(parents=True)
    assert warnings(directory) == [], "a topic that is not compacted any more is read from its queues"
    path = directory / "config" / "topics.json"
    topics = json.loads(path.read_text())
    topics["topicConfigTable"]["audit"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    topics["topicConfigTable"]["orders"]["attributes"] = {"cleanup.policy": "DELETE"}
    path.write_text(json.dumps(topics))
    (line,) = warnings(directory)
    assert line == (
        "store: of compacted topics (audit) every message that the log still has is read; a broker serves the last one "
        "of each key"
    )
    (directory / "batchconsumequeue" / "bulk" / "0").mkdir(parents=True)
    assert [line for line in warnings(directory) if "1 batch queues (BatchCQ) are not read" in line]
