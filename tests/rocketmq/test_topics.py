"""Topics by name: which ones a store knows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OptionError
from tests.reference.served import by_place


def test_a_topic_without_a_queue_has_no_messages(tmp_path: Path) -> None:
    """A broker creates a queue with its first message, so a consumer of the topic gets nothing before."""
    with open_store(str(tmp_path / "store"), "rocketmq") as store:
        store.append(pa.table({"topic": ["orders"], "body": [b"one"]}))
    topics = tmp_path / "store" / "config" / "topics.json"
    content = json.loads(topics.read_text())
    content["topicConfigTable"]["returns"] = content["topicConfigTable"]["orders"] | {"topicName": "returns"}
    topics.write_text(json.dumps(content))
    assert by_place(tmp_path / "store", 1, topics=("returns",)) == []
    assert len(by_place(tmp_path / "store", 1, topics=("orders", "returns"))) == 1
    with pytest.raises(OptionError, match=r"no such topic.*orders"):
        by_place(tmp_path / "store", 1, topics=("return",))
