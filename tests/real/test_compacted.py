"""Compacted topics of 5.3.3: the rows are what a consumer of the real broker receives, before and after compactions,
and after the broker was killed and lost what it had not forced to disk.

`MQSTORE_COMPACTED` sets the number of seeds (1; 8 in `make test-real-full`), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from tests.golden import archive
from tests.real.broker import Broker, BrokerError
from tests.real.compacted import NEVER_MS, OFTEN_MS, PATIENCE_MS, SMALL, TOPICS, Story
from tests.reference.consumed import got, shown_fields
from tests.reference.served import AS_BROKER, Row, in_partitions, place, read
from tests.support.compacted_store import files_of, lose_entries

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261129"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_COMPACTED", "1")))
VISITS = 2


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_what_a_consumer_gets(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    story = Story(tmp_path / "store", r)
    for visit in range(VISITS):
        kill = visit == VISITS - 1 or r.random() < 0.5
        story.visit(OFTEN_MS if visit == 1 else r.choice((OFTEN_MS, NEVER_MS)), kill)
        lost = lose_entries(story.store, r.randrange(4), also_queues=r.random() < 0.5) if kill else set()
        rows = read(story.store, in_partitions(r.randrange(1, 5), topics=TOPICS, **AS_BROKER))
        messages = story.consumed()
        assert [shown(got(each), lost) for each in in_order(messages)] == [
            shown(shown_fields(row), lost) for row in in_order(rows)
        ]


def test_a_queue_whose_first_file_has_no_entry(tmp_path: Path) -> None:
    store = archive.unpack("killed-5.3.3", tmp_path, "rocketmq/compacted")
    first, log = (files_of(store, name, "settings", 1)[0] for name in ("compactionCq", "compactionLog"))
    size, settings = first.stat().st_size, SMALL | {"compactionScheduleInternal": NEVER_MS}
    settings |= {"compactionCqMappedFileSize": size, "compactionMappedFileSize": log.stat().st_size - size}
    first.write_bytes(bytes(size))
    rows = in_order(read(store, in_partitions(1, topics=TOPICS, **AS_BROKER)))
    with Broker("533", store, settings) as broker:
        messages = broker.consume("group", list(TOPICS), PATIENCE_MS)
    assert [place(row) for row in rows] == [place(each) for each in in_order(messages)]
    assert not any(place(row)[:2] == ("settings", 1) for row in rows)


@pytest.mark.parametrize("lost", ["compactionLog", "compactionCq"])
def test_a_queue_without_one_of_its_folders(lost: str, tmp_path: Path) -> None:
    """Also of what a start after a crash would dispatch to it, a consumer gets nothing."""
    store = archive.unpack("killed-5.3.3", tmp_path, "rocketmq/compacted")
    entries, log = (files_of(store, name, "settings", 1)[0] for name in ("compactionCq", "compactionLog"))
    size, settings = entries.stat().st_size, SMALL | {"compactionScheduleInternal": NEVER_MS}
    settings |= {"compactionCqMappedFileSize": size, "compactionMappedFileSize": log.stat().st_size - size}
    shutil.rmtree(store / "compaction" / lost / "settings" / "1")
    rows = in_order(read(store, in_partitions(1, topics=TOPICS, **AS_BROKER)))
    with Broker("533", store, settings) as broker:
        messages = broker.consume("group", list(TOPICS), PATIENCE_MS)
    assert [place(row) for row in rows] == [place(each) for each in in_order(messages)]
    assert not any(place(row)[:2] == ("settings", 1) for row in rows)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=place)


@pytest.mark.parametrize("change", ["lost", "left"])
@pytest.mark.parametrize("kind", ["compactionLog", "compactionCq"])
def test_a_broker_does_not_load_half_of_a_queue(kind: str, change: str, tmp_path: Path) -> None:
    """As `verify` reports for a file that is in only one of the two folders, even if its topic is compacted no more,
    and for one that a stopped compaction has renamed and not removed.
    """
    store = archive.unpack("stopped-5.3.3", tmp_path, "rocketmq/compacted")
    log, entries = (files_of(store, name, "settings", 1)[0] for name in ("compactionLog", "compactionCq"))
    entries_size = entries.stat().st_size
    # A broker adds one entry file's length to the configured log file size if the latter is a multiple of the former.
    settings = SMALL | {
        "compactionCqMappedFileSize": entries_size, "compactionMappedFileSize": log.stat().st_size - entries_size,
    }  # fmt: skip
    with Broker("533", store, settings):
        pass
    topics = store / "config" / "topics.json"
    topics.write_text(topics.read_text().replace("COMPACTION", "DELETE"))
    file = log if kind == "compactionLog" else entries
    if change == "lost":
        file.unlink()
    else:
        shutil.copy(file, f"{file}.delete")
    with open_store(str(store)) as opened:
        (finding,) = opened.verify()
        assert finding.effect == "does not load the store"
        with pytest.raises(BrokerError, match="did not start"):
            Broker("533", store, settings)
        if change == "left":
            assert opened.repair()
            with Broker("533", store, settings):
                pass


def shown(row: Row, lost: set[tuple[str, int, int]]) -> Row:
    """A row without the address of a message that reaches the log of its queue only at the broker start."""
    return row | {"physicalOffset": None, "offsetMsgId": None} if place(row) in lost else row
