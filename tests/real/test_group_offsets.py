"""Offsets of consumer groups: what a broker has recorded is read, and a consumer continues where mqstore set its group.

With `enableLmq` the broker keeps them in another file, which 4.9.3 writes but cannot read.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage_core import open_store
from tests.real.broker import Broker

pytestmark = pytest.mark.real

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000}
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
MESSAGES = [{"topic": "orders", "body": f"message {number}", "queueId": number % 2} for number in range(20)]
CONSUMERS, NOTED_S = 4, 5.0


def committed(store: Path) -> dict[tuple[str, str, int], int]:
    with open_store(str(store)) as opened:
        (batch,) = opened.view("offsets")
    rows = batch.to_pylist()
    return {(row["group"], row["topic"], row["queueId"]): row["committed"] for row in rows if row["topic"] == "orders"}


def consumed(broker: Broker) -> set[tuple[int, int]]:
    """Queues and offsets that consumers of the group received until the broker had recorded all of them.

    A client sends what it has consumed, queue by queue, when it shuts down. A broker that receives the first two of a
    new group at once may keep only one (each creates the group's table), and delivers the other queue again.
    """
    got: set[tuple[int, int]] = set()
    for _ in range(CONSUMERS):
        got |= {(message["queueId"], message["queueOffset"]) for message in broker.consume("billing", ["orders"])}
        stop = time.monotonic() + NOTED_S
        while time.monotonic() < stop:
            if not broker.ask(op="lag", group="billing", topic="orders")["total"]:
                return got
            time.sleep(0.2)
    raise AssertionError(f"the broker has not noted all of {sorted(got)}")


@pytest.mark.parametrize(
    ("version", "settings"),
    [("493", SMALL), ("493", SMALL | LIGHT), ("533", SMALL | LIGHT)],
    ids=["4.9.3", "4.9.3 enableLmq", "5.3.3 enableLmq"],
)
def test_a_group_goes_on_where_mqstore_set_it(version: str, settings: dict[str, object], tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker(version, store, settings) as broker:
        broker.ask(op="topic", topic="orders", queues=2, perm=6)
        broker.ask(op="produce", group="producers", messages=MESSAGES)
        assert len(consumed(broker)) == 20
        if "enableLmq" in settings:
            broker.ask(op="commit", group="%LMQ%billing", topic="orders", queueId=0, offset=3)
    expected = {("billing", "orders", 0): 10, ("billing", "orders", 1): 10}
    if "enableLmq" in settings:
        expected["%LMQ%billing", "orders", 0] = 3
        assert (store / "config" / "lmqConsumerOffset.json").exists()
        # What a broker would have left long ago, before the option was set.
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@older":{0:1}}}')
    assert committed(store) == expected
    with open_store(str(store)) as opened:
        opened.set_group_offsets("billing", {("orders", 0): 4, ("orders", 1): 9})
        if "enableLmq" in settings:
            opened.set_group_offsets("%LMQ%billing", {("orders", 0): 6})
            expected["%LMQ%billing", "orders", 0] = 6
    with Broker(version, store, settings) as broker:
        again = consumed(broker)
    if version == "493" and "enableLmq" in settings:
        assert len(again) == 20
        return
    assert again == {(0, offset) for offset in range(4, 10)} | {(1, 9)}
    assert committed(store) == expected
