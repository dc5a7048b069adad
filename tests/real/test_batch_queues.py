"""Batch queues of 5.3.3: the rows are what a consumer of the real broker receives, whose client splits inner batches,
also after the broker was killed, queues lost their last entries, or old files of the log were deleted.

`MQSTORE_BATCHED` sets the number of seeds (1; 8 in `make test-real-full`), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import os
import random
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.store import Scan
from tests.golden import archive
from tests.real.batch_queues import BATCHED, QUEUES, SMALL, TOPICS, Story
from tests.real.broker import Broker, BrokerError
from tests.reference.batches import got, shown_fields
from tests.reference.served import AS_BROKER, Row, in_partitions, place, read
from tests.support.batch_store import add_queue, lose_batch_entries, queues_that_go_back
from tests.support.stream_query import Query

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261129"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_BATCHED", "1")))
VISITS = 2
SETTLED_S = 3
"""Longer than a stream waits for a broker to list a record in its queue."""


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_what_a_consumer_gets(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    story = Story(tmp_path / "store", r)
    for visit in range(VISITS):
        kill = visit == VISITS - 1 or r.random() < 0.5
        story.visit(kill)
        if kill or r.random() < 0.5:
            lose_batch_entries(story.store, lambda: r.choice((0, r.randrange(6))))
        if r.random() < 0.4:
            expire(story.store, r.randrange(1, 3))
        rows = read(story.store, in_partitions(r.randrange(1, 5), topics=TOPICS, **AS_BROKER))
        truth = story.consumed()
        compared = certain(story.store)
        assert [shown_fields(row) for row in compared(rows)] == [got(each) for each in compared(truth)]
    with open_store(str(story.store)) as opened:
        assert opened.append(pa.table({"topic": ["plain"] * 9, "body": [b"%d" % number for number in range(9)]})) == 9
    story.visits += 1
    truth = story.consumed()
    compared = certain(story.store)
    rows = compared(read(story.store, in_partitions(1, topics=TOPICS, **AS_BROKER)))
    served = [(place(message), message["body64"]) for message in compared(truth)]
    assert served == [(place(row), b64encode(row["body"]).decode()) for row in rows]


def certain(store: Path) -> Callable[[list[Row]], list[Row]]:
    """Sorts rows, and leaves out what differs from run to run: queues whose entries go back (rocketmq.md 3.7), and the
    log's first record in a queue that is not its own (3.5).
    """
    back, first = queues_that_go_back(store), min(int(file.name) for file in (store / "commitlog").iterdir())
    assert len(back) < len(BATCHED) * QUEUES
    logged = read(store, in_partitions(1, scan=Scan.LOG, topics=TOPICS))
    own = {place(row) for row in logged if row["physicalOffset"] == first}

    def sure(row: Row) -> bool:
        return place(row)[:2] not in back and (row["physicalOffset"] != first or place(row) in own)

    return lambda rows: sorted(filter(sure, rows), key=place)


def test_a_stream_alongside_a_broker(tmp_path: Path) -> None:
    """Each message arrives once, even if a micro-batch ends inside an inner batch."""
    story = Story(tmp_path / "store", random.Random(FIRST_SEED))
    story.visit(kill=False)
    query = Query(story.store, {"topic": ",".join(TOPICS), "maxOffsetsPerTrigger": "13"})
    query.start()
    with story.broker() as broker:
        for _ in range(4):
            broker.ask(op="produce", group="producers", messages=story.some_messages(), quiet=True)
            while query.trigger():
                pass
        time.sleep(SETTLED_S)
        while query.trigger():
            pass
    query.stop()
    rows = [row for table in query.tables for row in table.to_pylist()]
    got = sorted((row["topic"], row["queueId"], row["queueOffset"], row["msgId"]) for row in rows)
    assert got == sorted((*place(message), message["msgId"]) for message in story.consumed())


def expire(store: Path, most: int) -> None:
    """Deletes the first files of the log, but never the last, as a broker does with old ones."""
    for file in sorted((store / "commitlog").iterdir())[:-1][:most]:
        file.unlink()


def test_a_broker_serves_what_a_repair_lists(tmp_path: Path) -> None:
    """The store's broker was killed, and its log is damaged in the middle."""
    r = random.Random(FIRST_SEED)
    story = Story(tmp_path / "store", r)
    story.visit(kill=True)
    lose_batch_entries(story.store, lambda: r.randrange(6))
    logged = read(story.store, in_partitions(1, scan=Scan.LOG, topics=TOPICS))
    damaged = logged[len(logged) // 3]["physicalOffset"]
    path = max(file for file in (story.store / "commitlog").iterdir() if int(file.name) <= damaged)
    with path.open("r+b") as log:
        log.seek(damaged - int(path.name) + 4)
        log.write(b"gone")
    with open_store(str(story.store)) as store:
        assert store.repair()
        assert list(store.verify()) == []
    rest = sorted(named(row) for row in logged if row["physicalOffset"] != damaged)
    assert sorted(map(named, story.consumed())) == rest


def named(message: Row) -> tuple[str, int, str, int]:
    """A message by the fields that stay the same when a gap before it is closed."""
    return message["topic"], message["queueId"], message["msgId"], message["physicalOffset"]


@pytest.mark.parametrize("change", ["a queue besides", "another type"])
def test_a_broker_loads_no_other_queues_of_a_batch_topic(change: str, tmp_path: Path) -> None:
    """This is why mqstore writes nothing to such a topic (rocketmq.md 3.7)."""
    store = archive.unpack("stopped-5.3.3", tmp_path, "rocketmq/batched")
    (file, *_) = (store / "batchconsumequeue" / "bulk" / "0").iterdir()
    settings = SMALL | {"mapperFileSizeBatchConsumeQueue": file.stat().st_size}
    with Broker("533", store, settings):
        pass
    if change == "another type":
        topics = store / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("BatchCQ", "SimpleCQ"))
    else:
        add_queue(store, "bulk")
    with pytest.raises(BrokerError, match="did not start"):
        Broker("533", store, settings)
