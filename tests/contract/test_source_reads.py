"""The options of a read, as Spark passes them: the same option means the same for every engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OffsetOutOfRangeError, OptionError, StoreNotFoundError, UnsupportedFormatError
from storage_core.store import ScanRequest
from tests.contract.data_source import load, planned
from tests.contract.engine import Engine, Seen, read
from tests.contract.messages import COUNTS

Of = Callable[[str], list[Seen]]


def seen(engine: Engine, table: pa.Table) -> list[Seen]:
    return sorted(engine.seen(table.to_batches()))


def error_of(path: Path | str, **options: str) -> OptionError:
    """The error as the user sees it: one line that names the option."""
    with pytest.raises(OptionError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_load_is_a_read_of_the_store(engine: Engine, store: Path) -> None:
    table = load(store)
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        batches = read(snapshot.plan(ScanRequest()))
        assert table.equals(pa.Table.from_batches(batches, snapshot.schema(ScanRequest())))


def test_names_of_options_have_no_case(engine: Engine, store: Path, of_queue: Of) -> None:
    table = load(store, TOPIC="alpha", STARTINGOFFSETS="Last:3", Mode="failfast")
    assert seen(engine, table) == of_queue("alpha")[-3:]


@pytest.mark.parametrize("option", ["topic", "subscribe"])
def test_topics_are_a_comma_list_or_a_json_list(engine: Engine, store: Path, option: str, of_queue: Of) -> None:
    wanted = of_queue("alpha") + of_queue("gamma")
    for text in ("alpha, gamma", "gamma,alpha,", '["alpha", "gamma"]'):
        assert seen(engine, load(store, **{option: text})) == wanted


def test_one_way_to_select_excludes_the_others(engine: Engine, store: Path) -> None:
    ways = {"topic": "alpha", "topicPattern": "a.*", "assign": '{"alpha": [0]}'}
    for one, other in combinations(ways.items(), 2):
        assert error_of(store, **dict((one, other))).name in (one[0], other[0])


def test_queues_are_assigned_by_json(engine: Engine, store: Path, of_queue: Of) -> None:
    assert seen(engine, load(store, assign='{"beta": [0]}')) == of_queue("beta")
    for text in ('{"alpah": [0]}', '{"alpha": [7]}', '{"alpha": 0}', "{}", "alpha", '{"alpha": [0]'):
        assert error_of(store, assign=text).name == "assign"


def test_patterns_are_javas(engine: Engine, store: Path, of_queue: Of) -> None:
    for option in ("topicPattern", "subscribePattern"):
        assert seen(engine, load(store, **{option: r"\Qal\E\p{Lower}+"})) == of_queue("alpha")
    assert error_of(store, topicPattern="a(").name == "topicPattern"


def offsets_json(**offsets: int) -> str:
    return json.dumps({queue: {"0": offset} for queue, offset in offsets.items()})


def test_offsets_in_words_numbers_and_from_the_end(engine: Engine, store: Path, everything: list[Seen]) -> None:
    def kept(**bounds: slice) -> list[Seen]:
        queues = {queue: [row for row in everything if row[0] == queue] for queue in sorted(COUNTS)}
        return [row for queue, rows in queues.items() for row in rows[bounds.get(queue, bounds["others"])]]

    whole = slice(None)
    cases = {
        ("earliest", "latest"): everything,
        ("last:5", "latest"): kept(others=slice(-5, None)),
        ("earliest", "last:5"): kept(others=slice(None, -5)),
        ("last:9", "last:2"): kept(others=slice(-9, -2)),
        (offsets_json(alpha=3), "latest"): kept(alpha=slice(3, None), others=whole),
        (offsets_json(alpha=3), offsets_json(alpha=9)): kept(alpha=slice(3, 9), others=whole),
        (offsets_json(alpha=-2), offsets_json(beta=-1)): everything,
        (offsets_json(alpha=3), "last:2"): kept(alpha=slice(3, -2), others=slice(None, -2)),
        ("last:9", offsets_json(alpha=35)): kept(alpha=slice(-9, 35), others=slice(-9, None)),
    }
    for (start, stop), wanted in cases.items():
        assert seen(engine, load(store, startingOffsets=start, endingOffsets=stop)) == wanted, (start, stop)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", offsets_json(alpha=-1)),
        ("startingOffsets", offsets_json(alpha=-3)),
        ("startingOffsets", "last:"),
        ("startingOffsets", "last:-1"),
        ("startingOffsets", "group:"),
        ("startingOffsets", "23"),
        ("startingOffsets", '{"alpha": 3}'),
        ("startingOffsets", '{"alpha": {"0": "3"}}'),
        ("startingOffsets", '{"alpha": {"0": 3}'),
        ("startingOffsets", '{"alpha": {"zero": 3}}'),
        ("startingOffsets", offsets_json(alpah=3)),
        ("startingOffsets", '{"alpha": {"7": 3}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", offsets_json(alpha=-2)),
        ("endingOffsets", offsets_json(alpah=3)),
        ("endingOffsets", '{"alpha": {"7": 3}}'),
    ],
)
def test_offsets_that_mean_nothing_are_refused_by_name(engine: Engine, store: Path, option: str, text: str) -> None:
    assert error_of(store, **{option: text}).name == option


def test_offsets_after_the_end_are_refused_or_the_end(engine: Engine, store: Path, of_queue: Of) -> None:
    text = offsets_json(alpha=99)
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss=false"):
        load(store, topic="alpha", startingOffsets=text)
    assert len(load(store, topic="alpha", startingOffsets=text, failOnDataLoss="false")) == 0
    table = load(store, topic="alpha", endingOffsets=text, failOnDataLoss="FALSE")
    assert seen(engine, table) == of_queue("alpha")


def test_columns_are_those_in_that_order(engine: Engine, store: Path) -> None:
    names = [engine.offset_column, "body", engine.queue_column]
    assert load(store, columns=", ".join(names)).schema.names == names
    assert load(store, columns=json.dumps(names)).schema.names == names
    error = error_of(store, columns="body,bodi")
    assert error.name == "columns"
    assert "did you mean body?" in str(error)
    assert error_of(store, columns="body,body").name == "columns"


def test_kafkas_layout_is_that_of_kafkas_source(engine: Engine, store: Path, everything: list[Seen]) -> None:
    table = load(store, layout="kafka")
    assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    columns = zip(*(table[name].to_pylist() for name in ("topic", "offset", "value")), strict=True)
    assert sorted(columns) == everything
    assert set(table["partition"].to_pylist()) == {0}
    assert load(store, layout="kafka", includeHeaders="true").schema.names == [*table.schema.names, "headers"]
    assert error_of(store, includeHeaders="true").name == "includeHeaders"


def test_kafkas_own_options_are_let_pass_with_its_layout(engine: Engine, store: Path) -> None:
    options = {"kafka.bootstrap.servers": "broker:9092", "maxOffsetsPerTrigger": "5"}
    assert len(load(store, layout="kafka", **options)) == sum(COUNTS.values())
    for name, text in options.items():
        assert error_of(store, **{name: text}).value == text


def test_partitions_are_as_many_and_as_large_as_asked(engine: Engine, store: Path, everything: list[Seen]) -> None:
    assert len(planned(store, minPartitions="7")[1]) >= 7
    assert len(planned(store, maxRecordsPerPartition="5")[1]) >= 13
    assert len(planned(store, maxBytesPerPartition="2k")[1]) > 5
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "5"}, {"maxBytesPerPartition": "2k"}):
        assert seen(engine, load(store, **options)) == everything
        for text in ("0", "-1", "many", ""):
            assert error_of(store, **dict.fromkeys(options, text)).value == text


def test_a_mistyped_option_names_close_ones(engine: Engine, store: Path) -> None:
    error = error_of(store, startingOfset="earliest")
    assert error.name.lower() == "startingofset"
    assert "startingOffsets" in str(error)


@pytest.mark.parametrize(
    ("name", "text"),
    [("mode", "FAST"), ("verifyCrc", "yes"), ("failOnDataLoss", "maybe"), ("view", "queue"), ("layout", "avro"),
     ("recovery", "nine"), ("engine", "kafka")],
)  # fmt: skip
def test_a_wrong_value_names_the_right_ones(engine: Engine, store: Path, name: str, text: str) -> None:
    error = error_of(store, **{name: text})
    assert (error.name, error.value) == (name, text)
    assert error.allowed


def test_an_empty_text_in_a_list_is_what_the_error_names(engine: Engine, store: Path) -> None:
    """The value is a JSON list of texts, so no other reason may be stated."""
    for name in ("topic", "columns", *(["key", "msgId"] if "key" not in engine.refuses else [])):
        error = error_of(store, **{name: '["alpha", ""]'})
        assert (error.name.lower(), error.value) == (name.lower(), '["alpha", ""]')
        assert "an empty text as number 2" in str(error)


def test_options_of_a_write_and_of_streams_are_refused(engine: Engine, store: Path) -> None:
    for name, text in (("lockTimeout", "1s"), ("maxOffsetsPerTrigger", "5"), ("queues", "8")):
        assert "leave it out" in str(error_of(store, **{name: text}))


OF_ONE = {
    "rocketmq": {"decompress": "false", "useIndex": "false", "commitLogPath": "/log"},
    "rabbitmq": {"vhost": "/", "includeAcked": "true", "queue": "alpha", "queuePattern": "a.*"},
}


def test_options_of_the_other_engine_name_it(engine: Engine, store: Path) -> None:
    (other,) = set(OF_ONE) - {engine.name}
    for name, text in OF_ONE[other].items():
        error = error_of(store, **{name: text})
        assert (error.name, error.value) == (name, text)
        assert {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}[other] in str(error)


def test_questions_that_only_the_other_engine_answers_are_refused(engine: Engine, store: Path) -> None:
    questions = {"scan": "log", "startingTimestamp": "-1h", "endingTimestamp": "-1h", "key": "k", "msgId": "m",
             "tag": "A"}  # fmt: skip
    for name, text in questions.items():
        if name in engine.refuses:
            assert error_of(store, **{name: text}).name == name
        else:
            load(store, **{name: text})


def test_views_are_tables_that_take_a_selection(engine: Engine, store: Path) -> None:
    rows = load(store, view="queues", topic="alpha").to_pylist()
    assert [row[engine.queue_column] for row in rows] == ["alpha"]
    assert len(load(store, view="queues")) == len(COUNTS)
    assert load(store, view="queues", columns="messages").schema.names == ["messages"]
    assert error_of(store, view="queues", startingOffsets="last:1").name == "view"
    assert error_of(store, view="queues", layout="kafka").name == "view"


def test_a_queue_that_is_not_there_names_close_ones(engine: Engine, store: Path) -> None:
    error = error_of(store, topic="alpah")
    assert error.value == "alpah"
    assert "did you mean alpha?" in str(error)


def test_several_stores_are_one_table(engine: Engine, store: Path, tmp_path: Path, everything: list[Seen]) -> None:
    for name in ("one", "two"):
        shutil.copytree(store, tmp_path / name)
    table = load(tmp_path, columns=f"{engine.queue_column},{engine.offset_column},body,store")
    assert seen(engine, table) == sorted(everything * 2)
    assert sorted(set(table["store"].to_pylist())) == ["one", "two"]
    some = load(tmp_path, columns="store", startingOffsets=json.dumps({"one": {"alpha": {"0": 30}}}), topic="alpha")
    assert (some["store"].to_pylist().count("one"), some["store"].to_pylist().count("two")) == (10, 40)
    assert error_of(tmp_path, topic="alpah").value == "alpah"
    assert error_of(tmp_path, layout="kafka").name == "layout"


def test_a_path_that_is_no_store_is_one_line(engine: Engine, store: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, f"{tmp_path}/*", "ftp://bucket/store"):
        with pytest.raises((StoreNotFoundError, UnsupportedFormatError)) as caught:
            load(path)
        assert "\n" not in str(caught.value)
