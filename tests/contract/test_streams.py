"""Streams: the micro-batches hold the rows of a batch read, each once, whatever the triggers, limits and restarts."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CheckpointError, DataLossError, OptionError, StoreNotFoundError
from tests.contract.engine import Engine, Seen
from tests.contract.engines import STREAMING
from tests.contract.messages import COUNTS, messages_of
from tests.golden.archive import fingerprint
from tests.support.stream_query import Query

TRIALS = int(os.environ.get("MQSTORE_TRIALS", "4"))
TOPICS = ("alpha", "beta", "gamma", "omega")


pytestmark = pytest.mark.parametrize("every_engine", STREAMING, indirect=True, ids=lambda engine: engine.name)


def query(engine: Engine, path: Path, columns: str | None = None, **options: str) -> Query:
    """A started query of the columns that `seen` needs, unless others are given ("" for all)."""
    columns = f"{engine.queue_column},{engine.offset_column},body" if columns is None else columns
    made = Query(path, {**({"columns": columns} if columns else {}), **options})
    made.start()
    return made


def add(engine: Engine, path: Path, counts: dict[str, int], seed: int) -> None:
    """Runs another job, which writes the given number of messages of each queue."""
    with engine.new(path) as store:
        store.append(engine.table(messages_of(counts, seed)))


def seen(engine: Engine, query: Query) -> list[Seen]:
    """All rows that a query has read, sorted."""
    return sorted(engine.seen(batch for table in query.tables for batch in table.to_batches()))


def counts(query: Query) -> list[int]:
    """The number of rows of each micro-batch."""
    return [table.num_rows for table in query.tables]


@pytest.mark.parametrize("number", range(TRIALS))
def test_a_stream_reads_what_a_batch_reads(engine: Engine, tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    path = engine.made(tmp_path / "store", messages_of({"alpha": chance.randrange(1, 40)}, 100 + number))
    limits = {
        "maxOffsetsPerTrigger": str(chance.randrange(1, 30)), "maxBytesPerTrigger": str(chance.randrange(1, 9000)),
        "minPartitions": str(chance.randrange(1, 4)), "maxRecordsPerPartition": str(chance.randrange(1, 20)),
        "startingOffsets": "earliest", "topicPattern": "[a-g].*",
    }  # fmt: skip
    running = query(engine, path, **{name: limits[name] for name in chance.sample(sorted(limits), 3)})
    for step in range(chance.randrange(8, 30)):
        what = chance.choice(("grow", "trigger", "trigger", "once", "die", "restart", "available"))
        if what == "grow":
            some = chance.sample(TOPICS, chance.randrange(1, 4))
            add(engine, path, {topic: chance.randrange(1, 25) for topic in some}, 1000 * number + step + 200)
        elif what == "restart":
            running.start()
        elif what == "available":
            running.start(available_now=True)
            running.run()
            running.start()
        elif running.trigger(once=what == "once", dies=lambda: what == "die") and what == "die":  # noqa: B023
            running.start()
    running.start()
    running.run()
    wanted = [row for row in engine.rows(path) if "topicPattern" not in running.options or row[0] < "h"]
    assert seen(engine, running) == sorted(wanted)


def test_reading_a_stream_changes_no_file(engine: Engine, store: Path, everything: list[Seen]) -> None:
    before = fingerprint(store)
    running = query(engine, store, maxOffsetsPerTrigger="7")
    running.run()
    assert seen(engine, running) == everything
    assert fingerprint(store) == before


def test_a_micro_batch_holds_as_many_messages_as_it_may(engine: Engine, store: Path) -> None:
    running = query(engine, store, maxOffsetsPerTrigger="10")
    running.run()
    assert counts(running) == [10, 10, 10, 10, 10, 10, 4]
    assert set(running.partition_counts) == {1}
    first = Counter(row[0] for row in engine.seen(running.tables[0].to_batches()))
    assert first["alpha"] > first["beta"] > 0
    assert first["gamma"] == 1


def test_a_micro_batch_holds_as_many_bytes_as_it_may(engine: Engine, store: Path) -> None:
    running = query(engine, store, maxBytesPerTrigger="5k")
    running.run()
    assert len(running.tables) > 3
    for table in running.tables:
        assert sum(len(body) for body in table["body"].to_pylist()) <= 5 << 10
    single = query(engine, store, maxBytesPerTrigger="1")
    single.run()
    assert counts(single) == [1] * sum(COUNTS.values())


def test_a_batch_waits_for_enough_messages_but_not_for_ever(engine: Engine, own: Path) -> None:
    waiting = query(engine, own, minOffsetsPerTrigger="1000", maxTriggerDelay="1h")
    assert not waiting.trigger()
    assert waiting.trigger(once=True)
    add(engine, own, {"alpha": 2}, 7)
    assert not waiting.trigger()
    waiting.start(available_now=True)
    assert waiting.trigger()
    add(engine, own, {"alpha": 2}, 8)
    waiting.options["maxTriggerDelay"] = "0s"
    waiting.start()
    assert waiting.trigger()
    assert counts(waiting) == [64, 2, 2]


def test_once_takes_all_and_available_now_what_was_there(engine: Engine, own: Path) -> None:
    running = query(engine, own, maxOffsetsPerTrigger="30")
    running.start(available_now=True)
    add(engine, own, {"alpha": 5, "omega": 4}, 3)
    running.run()
    assert counts(running) == [30, 30, 4]
    running.start()
    running.trigger(once=True)
    assert counts(running) == [30, 30, 4, 9]
    assert seen(engine, running) == sorted(engine.rows(own))


def test_an_idle_trigger_gives_the_same_offset_and_reads_nothing(
    engine: Engine, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_core.files import system

    running = query(engine, store)
    running.run()
    opened: list[str] = []
    opens = system.open_read
    monkeypatch.setattr(system, "open_read", lambda path: opened.append(path) or opens(path))
    monkeypatch.setattr(system, "names", lambda path: pytest.fail(f"{path} was listed"))
    assert running.reader is not None
    start = running.offsets[-1]
    for _ in range(20):
        assert running.reader.latestOffset(start, running.limit) is start
        assert running.reader.reportLatestOffset()["queues"] == start["queues"]
    assert opened == []


def test_the_lag_is_the_distance_to_the_reported_offset(engine: Engine, store: Path) -> None:
    running = query(engine, store, maxOffsetsPerTrigger="10", topic="alpha")
    running.trigger()
    assert running.reader is not None
    reported = running.reader.reportLatestOffset()
    assert reported["queues"] == {"alpha": {"0": COUNTS["alpha"]}}
    assert running.offsets[-1]["queues"] == {"alpha": {"0": 10}}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"topic": "alpha"}, 40),
        ({"topicPattern": "[ab].*"}, 63),
        ({"assign": '{"alpha": [0], "gamma": [0]}'}, 41),
        ({"startingOffsets": "last:3"}, 7),
        ({"startingOffsets": '{"alpha": {"0": 30}, "beta": {"0": -1}}'}, 11),
        ({"startingOffsets": "latest"}, 0),
        ({"topic": "omega"}, 0),
    ],
)
def test_a_selection_is_that_of_a_batch(engine: Engine, own: Path, options: dict[str, str], rows: int) -> None:
    running = query(engine, own, **options)
    running.run()
    assert len(seen(engine, running)) == rows
    add(engine, own, {"alpha": 2, "omega": 3}, 4)
    running.run()
    topics = options.get("topic", "alpha,omega").split(",")
    later = {"topicPattern": 2, "assign": 2}.get(next(iter(options)), ("alpha" in topics) * 2 + ("omega" in topics) * 3)
    assert len(seen(engine, running)) == rows + later


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"topic": "omega,alpha"}, ["there is no topic omega yet"]),
        ({"assign": '{"alpha": [0], "omega": [0]}'}, ["there is no topic omega yet"]),
        ({"topicPattern": "o.*"}, []),
    ],
)
def test_what_does_not_exist_yet_is_named(
    engine: Engine, store: Path, options: dict[str, str], warned: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    query(engine, store, **options).run()
    lines = capfd.readouterr().err.splitlines()
    assert [text in line for text, line in zip(warned, lines, strict=True)] == [True] * len(warned)


def test_kafkas_layout_and_its_options(engine: Engine, store: Path) -> None:
    running = Query(store, {"layout": "kafka", "kafka.bootstrap.servers": "h:1", "maxOffsetsPerTrigger": "50"})
    running.start()
    table = running.run()
    assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert counts(running) == [50, 14]


def test_an_expired_message_is_a_loss_that_is_named(engine: Engine, own: Path) -> None:
    running = query(engine, own, maxOffsetsPerTrigger="3", topic="alpha")
    running.trigger()
    first = engine.lose_first(own, "alpha")
    assert first > 3
    if engine.acknowledges:
        running.run()
        assert len(seen(engine, running)) == 40 - (first - 3)
        return
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=rf"alpha/0 begins at {first} now, the checkpoint is at 3; .*failOnDataLoss"
        ):
            running.trigger()
        running.start()
    running.options["failOnDataLoss"] = "false"
    running.start()
    running.run()
    assert [row[1] for row in seen(engine, running)] == [0, 1, 2, *range(first, 40)]


@pytest.mark.parametrize("what", ["gone", "empty"])
def test_a_store_that_is_away_for_a_while_is_no_deleted_topic(engine: Engine, own: Path, what: str) -> None:
    """A disk that is not mounted: the query keeps its place, whatever `failOnDataLoss` says."""
    running = query(engine, own, failOnDataLoss="false")
    running.run()
    away = own.rename(own.with_name("away"))
    if what == "empty":
        own.mkdir()
    with pytest.raises(StoreNotFoundError, match="check the path"):
        running.trigger()
    if what == "empty":
        own.rmdir()
    away.rename(own)
    running.start()
    assert not running.trigger()
    add(engine, own, {"alpha": 2}, 5)
    running.run()
    assert seen(engine, running) == sorted(engine.rows(own))


def test_a_store_in_the_place_of_another_is_noticed(engine: Engine, own: Path, tmp_path: Path) -> None:
    running = query(engine, own)
    running.run()
    other = engine.made(tmp_path / "other", messages_of(dict.fromkeys(COUNTS, 50), 9))
    running.path = other
    running.start()
    with pytest.raises(CheckpointError, match="belongs to another store") as caught:
        running.trigger()
    assert "\n" not in str(caught.value)
    smaller = engine.made(tmp_path / "smaller", messages_of({"alpha": 3, "beta": 3}, 9))
    running.path = smaller
    running.start()
    with pytest.raises((CheckpointError, DataLossError)):
        running.trigger()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"endingOffsets": '{"alpha": {"0": 3}}'}, "endingOffsets"),
        ({"endingTimestamp": "-1h"}, "endingTimestamp"),
        ({"scan": "log"}, "scan"),
        ({"view": "queues"}, "view"),
        ({"pushdown": "true"}, "pushdown"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"startingOffsets": '{"nothing": {"0": 3}}'}, "startingOffsets"),
        ({"recovery": "none"}, "recovery"),
    ],
)
def test_what_a_stream_has_no_answer_to_is_one_line(
    engine: Engine, store: Path, options: dict[str, str], name: str
) -> None:
    with pytest.raises(OptionError) as caught:
        query(engine, store, "", **options).trigger()
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_several_stores_are_refused(engine: Engine, store: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        engine.made(tmp_path / name, messages_of({"alpha": 1}))
    running = Query(tmp_path, {})
    with pytest.raises(OptionError, match="holds 2 stores, and a stream reads one store; name one of them"):
        running.start()


def test_offsets_of_other_versions_and_engines(engine: Engine, store: Path) -> None:
    running = query(engine, store)
    running.trigger()
    good = running.offsets[-1]
    for wrong in ({"alpha": {"0": 3}}, {**good, "mqstore": 7}, {**good, "engine": "other"}, {**good, "queues": 3}):
        running.offsets = [json.loads(json.dumps(wrong))]
        running.committed = 0
        running.start()
        with pytest.raises(CheckpointError) as caught:
            running.trigger()
        assert "\n" not in str(caught.value)


def test_an_edited_seal_is_one_line(engine: Engine, store: Path) -> None:
    """One seal stays as it is: else every edit tells another store."""
    running = query(engine, store)
    running.run()
    good, told = json.dumps(running.offsets[-1]), []
    for end in ("x", "", "@", ":x", "@x"):
        changed = json.loads(good)
        topic = min(changed["seals"])
        number, text = min(changed["seals"][topic].items())
        changed["seals"][topic][number] = f"{text.partition(':')[0]}:{end}"
        running.offsets, running.committed = [changed], 0
        running.start()
        try:
            running.trigger()
        except (CheckpointError, DataLossError) as error:
            told.append(str(error))
    assert told
    assert "\n" not in "".join(told)


def test_a_batch_that_is_planned_again_has_the_same_rows(engine: Engine, own: Path) -> None:
    running = query(engine, own, maxOffsetsPerTrigger="9")
    while running.trigger():
        again = running.rows(running.offsets[-2], running.offsets[-1])
        assert again.equals(running.tables[-1])
        add(engine, own, {"beta": 1}, len(running.tables) + 50) if len(running.tables) < 4 else None
    running.start()
    for start, end, table in zip(running.offsets, running.offsets[1:], running.tables, strict=False):
        key = [(engine.queue_column, "ascending"), (engine.offset_column, "ascending")]
        assert running.rows(start, end).sort_by(key).equals(pa.table(table).sort_by(key))


def test_open_streams_leave_no_descriptor(engine: Engine, store: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    running = query(engine, store)
    running.run()
    running.stop()
    with open_store(str(store)) as opened:
        opened.snapshot()
    assert len(os.listdir("/proc/self/fd")) <= before
