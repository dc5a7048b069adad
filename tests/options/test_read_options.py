"""Options: every name, alias, value and error text, without Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from storage_core.errors import OptionError
from storage_core.option_table import OPTIONS, read_options
from storage_core.options.option import READ, SPARK, STREAM, WRITE
from storage_core.options.read import check_engine
from storage_core.options.values import instant_ms
from storage_core.store import EARLIEST, LATEST, OffsetBound, ScanRequest

NOW = 1_700_000_000_000


def error(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read_options({name.replace("__", "."): text for name, text in options.items()}, NOW)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_read_everything() -> None:
    options = read_options({"path": "/data"}, NOW)
    assert (options.engine, options.assign, options.min_partitions) == (None, None, None)
    assert (options.view, options.kafka) == ("messages", False)
    assert options.request == ScanRequest()
    assert options.start.of_store("s", ["s"]) == OffsetBound(EARLIEST)
    assert options.stop.of_store("s", ["s"]) == OffsetBound(LATEST)
    assert options.store_options == {}


def test_names_have_no_case_and_aliases_mean_the_same() -> None:
    assert read_options({"TOPIC": "a, b"}).request.topics == ("a", "b")
    assert read_options({"subscribe": "a,,b,a"}).request.topics == ("a", "b")
    assert (
        read_options({"subscribePattern": "or.*"}).request.topic_pattern
        == read_options({"topicpattern": "or.*"}).request.topic_pattern
    )
    assert read_options({"topic": "a", "subscribe": "a"}).request.topics == ("a",)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_table_is_known(option) -> None:
    values = {
        READ: option.default,
        SPARK: "/data",
        **dict.fromkeys((STREAM, WRITE), option.default),
    }
    if values[option.use] is not None:
        read_options({option.name: values[option.use]})
    elif option.use != READ:
        assert "mqstore; leave it out" in error(**{option.name: "1"}) or "belongs to" in error(**{option.name: "1"})
    assert option.meaning
    assert option.values


def test_one_of_the_three_selections() -> None:
    assert error(topic="a", assign='{"a": [0]}') == (
        "OptionError: option 'assign' = '{\"a\": [0]}': excludes topic; "
        "give one of topic (subscribe), topicPattern (subscribePattern), assign"
    )
    assert "excludes subscribe;" in error(subscribe="a", subscribePattern="b")


def test_two_names_of_one_option() -> None:
    assert error(topic="a", subscribe="b") == (
        "OptionError: option 'topic' = 'a': is another name of subscribe; give one of the two"
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("topik", "topic"),
        ("verifycrcs", "verifyCrc"),
        ("startingOffset", "startingOffsets"),
        ("minpartition", "minPartitions"),
        ("collumns", "columns"),
        ("subscibe", "subscribe"),
        ("modes", "mode"),
    ],
)
def test_an_unknown_option_lists_the_close_ones(name: str, near: str) -> None:
    text = error(**{name: "x"})
    assert text.startswith(f"OptionError: option '{name}' = 'x': there is no such option; did you mean ")
    assert near in text


def test_an_unknown_option_without_close_ones_lists_all() -> None:
    assert error(zzzz="x").startswith(
        "OptionError: option 'zzzz' = 'x': there is no such option; the options of a read are engine, view, layout,"
    )


SIZE = "must be a number of bytes of at least 1, such as 268435456, 262144k, 256m or 1g"
TOO_LARGE = "is too large; the largest value is 9223372036854775807"
TIME = "must be epoch milliseconds, ISO 8601 such as 2024-06-01T12:00:00Z, or before now: -10m, -2h, -1d"
LATER = "not in this version of mqstore; leave it out"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("mode", "FAILSAFE", "allowed are FAILFAST, DROPMALFORMED, PERMISSIVE; did you mean FAILFAST?"),
        ("scan", "disk", "allowed are queues, log"),
        (
            "view",
            "queue",
            "allowed are messages, queues, topics, segments, index, offsets, damage, raft; did you mean queues?",
        ),
        ("layout", "avro", "allowed are native, kafka"),
        ("engine", "kafka", "allowed are auto, rocketmq, rabbitmq"),
        ("recovery", "5.3", "allowed are auto, 4.9, 5.x, none; did you mean 5.x?"),
        ("verifyCrc", "yes", "allowed are true and false"),
        ("minPartitions", "0", "must be a whole number of at least 1"),
        ("minPartitions", "²", "must be a whole number of at least 1"),
        ("maxRecordsPerPartition", "-5", "must be a whole number of at least 1"),
        ("minPartitions", "9223372036854775808", TOO_LARGE),
        ("minPartitions", "9" * 30, TOO_LARGE),
        ("maxBytesPerPartition", "8388608t", TOO_LARGE),
        ("maxBytesPerPartition", "9" * 20, TOO_LARGE),
        ("maxBytesPerPartition", "1x", SIZE),
        ("maxBytesPerPartition", "0k", SIZE),
        ("topic", " , ", "names nothing; give a comma list, or leave the option out"),
        ("topic", '["a", 1]', 'must be a JSON list of texts such as ["orders", "payments"]'),
        ("topic", '["a"', 'is not JSON; write it like ["orders", "payments"]'),
        ("columns", "topic,body,topic", "names the column topic twice"),
        ("columns", '["topic", "topic"]', "names the column topic twice"),
        ("columns", "[]", "names nothing; give a comma list, or leave the option out"),
        ("topicPattern", "", "is empty; .* takes every topic"),
        ("startingTimestamp", "yesterday", TIME),
        ("endingTimestamp", "-5", TIME),
        ("includeHeaders", "true", "goes with layout=kafka; the native layout has the column properties"),
        ("key", "", "is empty; leave the option out"),
        ("key", '["a"', 'is not JSON; write it like ["orders", "payments"]'),
        ("key", '["a", ""]', "has an empty text as number 2 of its list; leave it out"),
        ("key", "[]", "names nothing; give a comma list, or leave the option out"),
        ("msgId", "7F00000100002A9F00000000000000", "has 30 hex digits; a message id has 32, or 56 with IPv6"),
        ("msgId", '["A", 1]', 'must be a JSON list of texts such as ["orders", "payments"]'),
        ("tag", " || ", "must be one tag, several as A || B, or * for everything"),
        ("tag", "A | B", "must be one tag, several as A || B, or * for everything"),
        ("pushdown", "yes", "allowed are true and false"),
        ("maxOffsetsPerTrigger", "5", "belongs to streaming reads; leave it out, or read with readStream"),
        ("vhost", " ", "names nothing; give a comma list, or leave the option out"),
        ("includeAcked", "1", "allowed are true and false"),
        ("preserve", "true", "belongs to writing; leave it out when reading"),
        ("kafka.bootstrap.servers", "h:1", "belongs to Kafka; it is ignored with layout=kafka, otherwise leave it out"),
    ],
)  # fmt: skip
def test_a_wrong_value(name: str, value: str, text: str) -> None:
    assert error(**{name.replace(".", "__"): value}) == f"OptionError: option '{name}' = '{value}': {text}"


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(error(mode="x" * 5000)) < 250


@pytest.mark.parametrize(
    "name", ["kafka.bootstrap.servers", "kafka.group.id", "kafkaConsumer.pollTimeoutMs", "maxOffsetsPerTrigger"]
)
def test_the_kafka_layout_ignores_a_kafka_jobs_own_options(name: str) -> None:
    options = read_options({"layout": "KAFKA", name: "1", "includeHeaders": "true"})
    assert options.kafka
    assert options.include_headers
    assert options.ignored == (name,)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("3k", 3072), ("256m", 256 << 20), ("1 GB", 1 << 30), ("2MiB", 2 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_options({"maxBytesPerPartition": text}).request.max_bytes_per_partition == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000123", 1700000000123),
        ("-10m", NOW - 600_000),
        ("-2h", NOW - 7_200_000),
        ("-1d", NOW - 86_400_000),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-14 23:13:20+01:00", NOW),
        ("2023-11-14T22:13:20.000001Z", NOW + 1),
        ("2023-11-14", 1_699_920_000_000),
        ("1969-12-31", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert instant_ms(NOW)("startingTimestamp", text) == ms


def test_options_of_one_engine() -> None:
    options = read_options({"QUEUE": "a,b", "vhost": '["x, y"]', "includeAcked": "true", "useIndex": "true"})
    assert (options.request.topics, options.vhosts, options.request.include_acked) == (("a", "b"), ("x, y",), True)
    assert sorted(name for _, name, _ in options.of_one_engine) == ["includeAcked", "queue", "vhost"]
    check_engine(options.of_one_engine, "rabbitmq", "/s")
    with pytest.raises(OptionError) as caught:
        check_engine(read_options({"queuePattern": "a.*"}).of_one_engine, "rocketmq", "/s")
    assert str(caught.value) == (
        "OptionError: option 'queuePattern' = 'a.*': belongs to RabbitMQ stores, and /s is a RocketMQ store; "
        "leave it out"
    )
    for name, value in (("decompress", "false"), ("useIndex", "false"), ("commitLogPath", "/l")):
        with pytest.raises(OptionError, match=f"option '{name}' = '{value}': belongs to RocketMQ stores"):
            check_engine(read_options({name: value}).of_one_engine, "rabbitmq", "/s")


def test_store_options() -> None:
    options = read_options({"recovery": "5.X", "commitLogPath": "/a, /b"})
    assert options.store_options == {"recovery": "5.x", "commitLogPath": "/a,/b"}


def test_the_page_of_options_lists_those_of_a_read() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)`(?: \([^)]+\))? \|", page, re.MULTILINE))
    known = {option.name for option in OPTIONS if option.use == READ}
    assert known - documented == set()
    rows = re.findall(r"^\| `\w+` \(([^)]+)\) \|", page, re.MULTILINE)
    aliases = {alias for row in rows for alias in re.findall(r"`(\w+)`", row)}
    assert aliases == {alias for option in OPTIONS for alias in option.aliases}


def test_a_least_number_of_messages_above_the_most() -> None:
    limits = {"minOffsetsPerTrigger": "60", "maxOffsetsPerTrigger": "10"}
    with pytest.raises(OptionError) as caught:
        read_options(limits, stream=True)
    assert str(caught.value) == (
        "OptionError: option 'minOffsetsPerTrigger' = '60': is more than maxOffsetsPerTrigger, 10; give less"
    )
    assert read_options({**limits, "minOffsetsPerTrigger": "10"}, stream=True).limits.fewest_messages == 10


def test_numbers_of_thousands_of_digits_are_one_line() -> None:
    """Python refuses to convert these texts."""
    many = "9" * 5000
    for option in ("minPartitions", "maxBytesPerPartition", "startingTimestamp", "asOf"):
        assert f"option '{option}' = '999" in error(**{option: many})
    assert "startingTimestamp" in error(startingTimestamp=f"-{many}d")
    assignment = read_options({"assign": json.dumps({"t": [many]})}).assign
    assert assignment is not None
    with pytest.raises(OptionError, match="must be a queue id"):
        assignment.of_store("s", ["s"])


@pytest.mark.parametrize(
    ("name", "value"), [("columns", "topic,\udcff"), ("columns", '["\\ud800"]'), ("tag", "A || \udcff")]
)
def test_what_is_not_unicode_is_one_line(name: str, value: str) -> None:
    """As Python passes on a shell's argument that is not UTF-8."""
    assert error(**{name: value}).endswith(": is not UTF-8 text")
