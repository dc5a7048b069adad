"""What a store serves: its queues and their ranges at one point in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OffsetOutOfRangeError, OptionError
from storage_core.store import Mode, QueueInfo, Scan, ScanRequest
from tests.contract.engine import Engine, Message, Seen, read
from tests.contract.messages import COUNTS

MORE = [Message("alpha", b"one more"), Message("omega", b"a new queue")]


def test_queues_are_sorted_with_half_open_ranges(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        assert list(opened.queues()) == [QueueInfo(name, 0, 0, count) for name, count in sorted(COUNTS.items())]


def test_a_store_and_its_snapshot_list_the_same_queues(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        assert list(opened.queues()) == list(opened.snapshot().queues())


def test_topics_are_the_names_of_the_queues(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        assert snapshot.topics() == set(COUNTS)
        assert snapshot.topics(("alpha", "nowhere")) == set(COUNTS), "asking for a name does not make it one"


def test_every_message_lies_in_its_range(engine: Engine, own: Path) -> None:
    """Also after a second job, and after the first messages have been removed."""
    first = engine.lose_first(own, "alpha")
    with open_store(str(own)) as opened:
        opened.append(engine.table(MORE))
        ranges = {queue.topic: range(queue.start, queue.stop) for queue in opened.queues()}
    rows = engine.rows(own)
    assert set(ranges) == {name for name, _, _ in rows}
    assert all(offset in ranges[name] for name, offset, _ in rows)
    for name, span in ranges.items():
        assert min(offset for queue, offset, _ in rows if queue == name) == span.start
    assert ranges["alpha"].start == first > 0


def test_a_whole_store_has_nothing_to_warn_of(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        snapshot.plan(engine.request())
        assert list(snapshot.warnings()) == []


# -- read and find


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (3, 9), (39, 40), (5, 5), (0, 0), (40, 40)])
def test_read_gives_a_range_in_order(
    engine: Engine, store: Path, start: int, stop: int, of_queue: Callable[[str], list[Seen]]
) -> None:
    with open_store(str(store)) as opened:
        assert engine.seen(opened.read("alpha", 0, start, stop)) == of_queue("alpha")[start:stop]


def test_read_gives_native_columns_or_those_asked_for(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        native = opened.snapshot().schema(ScanRequest())
        (whole,) = {batch.schema for batch in opened.read("alpha", 0, 0, 9)}
        (some,) = {batch.schema for batch in opened.read("alpha", 0, 0, 9, columns=("body", engine.offset_column))}
    assert whole == native
    assert some.names == ["body", engine.offset_column]


def test_read_of_a_range_that_is_none(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        for start, stop in ((9, 3), (0, 41), (41, 41)):
            with pytest.raises(OffsetOutOfRangeError, match="alpha"):
                list(opened.read("alpha", 0, start, stop))


def test_read_of_a_queue_that_is_not_there_names_close_ones(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        with pytest.raises(OptionError, match=r"\balpha\b"):
            list(opened.read("alpah", 0, 0, 1))
        with pytest.raises(OptionError, match=r"alpha.*\b0\b"):
            list(opened.read("alpha", 7, 0, 1))


def test_find_without_a_question_is_a_read(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    with open_store(str(store)) as opened:
        assert sorted(engine.seen(opened.find(topic="alpha"))) == of_queue("alpha")


def test_a_queue_or_a_whole_topic_is_read_in_order(engine: Engine, store: Path, everything: list[Seen]) -> None:
    alpha = [row for row in everything if row[0] == "alpha"]
    with open_store(str(store)) as opened:
        assert engine.seen(opened.read("alpha")) == alpha
        assert engine.seen(opened.read("alpha", 0)) == alpha
        assert engine.seen(opened.read("alpha", 0, 3, 7)) == alpha[3:7]
        with pytest.raises(OptionError, match="offsets belong to one queue"):
            list(opened.read("alpha", start=3))


WRONG = [
    ({"key": 5}, "key", "must be a text, not int"), ({"msg_id": b"7F"}, "msg_id", "must be a text, not bytes"),
    ({"topic": ["alpha"]}, "topic", "must be a text, not list"),
    ({"topic": "alpha", "queue_id": "0"}, "queue_id", "a whole"),
    ({"topic": "alpha", "queue_id": 0, "stop": "9"}, "stop", "whole number, not str"),
    ({"topic": "alpha", "columns": "body"}, "columns", r"such as \['body'\]"),
    ({"topic": "alpha", "columns": [7]}, "columns", "texts only, not int"),
    ({"topic": "alpha", "colums": ["body"]}, "colums", "did you mean columns"),
    ({"topic": "alpha", "topics": ["beta"]}, "topics", "no such field"),
    ({"topic": "alpha", "mode": "strict"}, "mode", "FAILFAST, DROPMALFORMED, PERMISSIVE"),
    ({"topic": "alpha", "max_records_per_partition": 0}, "max_records_per_partition", "at least 1"),
    ({"topic": "alpha", "min_partitions": True}, "min_partitions", "whole number, not bool"),
    ({"topic": "alpha", "start_ms": "2020"}, "start_ms", "whole number, not str"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "message"), WRONG, ids=[name for _, name, _ in WRONG])
def test_a_wrong_parameter_is_one_line(store: Path, given: dict[str, Any], name: str, message: str) -> None:
    with open_store(str(store)) as opened:
        ask: Any = opened.find if given.keys() & {"key", "msg_id"} else opened.read
        with pytest.raises(OptionError, match=message) as caught:
            list(ask(**given))
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_lists_and_texts_are_taken_as_python_users_write_them(engine: Engine, store: Path) -> None:
    names = [engine.queue_column, "body"]
    with open_store(str(store)) as opened:
        for columns in (names, iter(names)):
            batches = list(opened.read("alpha", columns=columns, mode="dropmalformed"))
            assert [batch.schema.names for batch in batches] == [names] * len(batches)
            assert sum(batch.num_rows for batch in batches) == len(engine.seen(opened.read("alpha")))
    assert ScanRequest(mode=cast("Mode", "dropmalformed"), scan=cast("Scan", "LOG")) == ScanRequest(
        mode=Mode.DROPMALFORMED, scan=Scan.LOG
    )


# -- one point in time


def test_a_snapshot_does_not_see_what_comes_after_it(engine: Engine, own: Path, everything: list[Seen]) -> None:
    with open_store(str(own)) as reader, open_store(str(own)) as writer:
        snapshot = reader.snapshot()
        queues = list(snapshot.queues())
        before = snapshot.plan(engine.request())
        writer.append(engine.table(MORE))
        after = snapshot.plan(engine.request())
        assert list(snapshot.queues()) == queues
    assert sorted(engine.seen(read(before))) == everything
    assert sorted(engine.seen(read(after))) == everything


def test_an_open_store_sees_what_was_written_since(engine: Engine, own: Path, everything: list[Seen]) -> None:
    with open_store(str(own)) as reader, open_store(str(own)) as writer:
        assert len(reader.queues()) == 3
        for number in range(3):
            writer.append(engine.table([Message("alpha", b"more %d" % number)]))
            rows = engine.seen(read(reader.snapshot().plan(engine.request())))
            assert len(rows) == len(everything) + number + 1
            assert b"more %d" % number in {body for _, _, body in rows}


def test_the_writer_itself_sees_what_it_wrote(engine: Engine, own: Path) -> None:
    with open_store(str(own)) as opened:
        stop = opened.queues()[0].stop
        opened.append(engine.table(MORE))
        assert [queue.topic for queue in opened.queues()] == ["alpha", "beta", "gamma", "omega"]
        assert opened.queues()[0].stop > stop


def test_the_store_column_is_the_stores_name_or_the_one_asked_for(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        for requested, name in ((None, "store"), ("a/b", "a/b")):
            request = ScanRequest(columns=("store", "body"), store_name=requested)
            table = pa.Table.from_batches(read(opened.snapshot().plan(request)))
            assert set(table["store"].to_pylist()) == {name}
