"""Topics by name: which ones a store knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OffsetOutOfRangeError, OptionError
from storage_core.store import EARLIEST, LATEST, OffsetBound, QueueKey
from tests.command_line.calls import run
from tests.reference.served import by_place


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one message, of orders/0. By topics.json, orders has four queues, and returns has four too."""
    root = tmp_path / "a" / "store"
    with open_store(str(root), "rocketmq") as opened:
        opened.append(pa.table({"topic": ["orders"], "body": [b"one"], "queueId": pa.array([0], pa.int32())}))
    topics = root / "config" / "topics.json"
    content = json.loads(topics.read_text())
    table = content["topicConfigTable"]
    table["orders"] |= {"readQueueNums": 4, "writeQueueNums": 4}
    table["returns"] = table["orders"] | {"topicName": "returns"}
    topics.write_text(json.dumps(content))
    return root


def test_a_topic_without_a_queue_has_no_messages(store: Path) -> None:
    """A broker creates a queue with its first message, so a consumer of the topic gets nothing before."""
    assert by_place(store, 1, topics=("returns",)) == []
    assert len(by_place(store, 1, topics=("orders", "returns"))) == 1
    with pytest.raises(OptionError, match=r"no such topic.*orders"):
        by_place(store, 1, topics=("return",))


def test_a_queue_without_a_message_has_none(store: Path) -> None:
    assert by_place(store, 1, assign=(("orders", 3), ("returns", 0))) == []
    assert len(by_place(store, 1, assign=(("orders", 3), ("orders", 0)))) == 1
    for offset in (0, EARLIEST, LATEST):
        start = OffsetBound(offsets={("orders", 3): offset, ("orders", 0): 0})
        assert len(by_place(store, 1, start=start)) == 1
    with pytest.raises(OffsetOutOfRangeError, match=r"orders/3: startingOffsets 1 is after the end.*\[0, 0\)"):
        by_place(store, 1, start=OffsetBound(offsets={("orders", 3): 1}))
    past = OffsetBound(offsets={("orders", 3): 1})
    assert len(by_place(store, 1, stop=past, fail_on_data_loss=False)) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("orders", 4), r"'orders/4': the topic has no such queue; its queues are 0 to 3$"),
        (("orders", -1), r"'orders/-1': the topic has no such queue; its queues are 0 to 3$"),
        (("order", 0), r"'order/0': there is no such topic; did you mean orders\? "),
    ],
)
def test_a_queue_that_is_not_there_is_refused(store: Path, key: QueueKey, text: str) -> None:
    with pytest.raises(OptionError, match=f"option 'assign' = {text}"):
        by_place(store, 1, assign=(key,))
    with pytest.raises(OptionError, match=f"option 'startingOffsets' = {text}"):
        by_place(store, 1, start=OffsetBound(offsets={key: 0}))
    with pytest.raises(OptionError, match=f"option 'endingOffsets' = {text}"):
        by_place(store, 1, stop=OffsetBound(offsets={key: 0}))


def test_the_queues_of_a_topic_that_topics_json_does_not_have(store: Path) -> None:
    (store / "config" / "topics.json").unlink()
    with pytest.raises(OptionError, match=r"'orders/1': the topic has no such queue; its queues are 0$"):
        by_place(store, 1, assign=(("orders", 1),))
    with pytest.raises(OptionError, match="no such topic"):
        by_place(store, 1, topics=("returns",))


def test_a_topic_without_a_queue_in_several_stores(store: Path) -> None:
    shutil.copytree(store, store.parent.parent / "b" / "store")
    folder = store.parent.parent
    for switches in ([], ["--queue", "1"], ["--start", "0"], ["--last", "3"]):
        assert run("cat", folder, "--topic", "returns", *switches, code=1).stderr == ""
    assert "is in none of the 2 stores; the topics are orders" in run("cat", folder, "--topic", "return", code=2).stderr


@pytest.mark.filterwarnings("error")
def test_a_topic_that_is_closed_for_writing(store: Path) -> None:
    """With writeQueueNums 0 no producer may write; rows without a queue id go to queue 0."""
    topics = store / "config" / "topics.json"
    content = json.loads(topics.read_text())
    content["topicConfigTable"]["orders"]["writeQueueNums"] = 0
    topics.write_text(json.dumps(content))
    with open_store(str(store)) as opened:
        opened.append({"topic": ["orders"] * 3, "body": ["a", "b", "c"], "key": ["k", None, None]})
    assert [row["queueId"] for row in by_place(store, 1, topics=("orders",))] == [0] * 4


@pytest.mark.parametrize("name", ["20261130140000", "00", "2147483648"])
def test_a_copy_of_a_queue_beside_it(store: Path, name: str) -> None:
    """A broker ignores a folder whose name is not the number of a queue; it is an int in Java."""
    rows = by_place(store, 1)
    queues = store / "consumequeue" / "orders"
    (queues / name).mkdir()
    (queues / name / "00000000000000000000").write_bytes(bytes((queues / "0" / "0".zfill(20)).stat().st_size))
    assert by_place(store, 1) == rows
    with open_store(str(store)) as opened:
        assert [each.queue_id for each in opened.queues()] == [0]
        (finding,) = opened.verify()
        assert (finding.kind, finding.effect) == ("unexpected file", "ignores it")
        assert opened.append(pa.table({"topic": ["orders"], "body": [b"two"]})) == 1
