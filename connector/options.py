"""The one table of all options, and a load's options read by it: names without case, aliases, exact errors.

Leaves to others: parsing of single values (`values`, `offsets`, `topic_pattern`), and what stores, topics and columns
exist (`planning`, the engines).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connector import values
from connector.offsets import Assignment, Bound, assignment, bound
from connector.topic_pattern import java_pattern
from storage_core.errors import OptionError, closest

READ, STREAM, WRITE, SPARK = "read", "stream", "write", "spark"
ROCKETMQ, RABBITMQ = "rocketmq", "rabbitmq"

Parser = Callable[[str, str], Any]


@dataclass(frozen=True)
class Option:
    """One row of the table. `use` says what it belongs to: READ works in batch reads, SPARK is Spark's own.

    `engine` is set where the option means something for the stores of one engine only, `aliases_of` names the engine of
    an alias that only one engine's users say.
    """

    name: str
    values: str
    default: str | None
    meaning: str
    use: str = READ
    parse: Parser | None = None
    aliases: tuple[str, ...] = ()
    engine: str | None = None
    aliases_of: Mapping[str, str] = field(default_factory=dict)


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(name, text, "is empty; leave the option out")
    return text.strip()


_VIEWS = ("messages", "queues", "topics", "segments", "index", "offsets", "damage")

OPTIONS: tuple[Option, ...] = (
    Option("path", "directory", None, "a store, or a folder of stores; load([a, b]) takes several", SPARK),
    Option("engine", "auto, rocketmq, rabbitmq", "auto", "normally seen from the directory",
           parse=values.choice("auto", "rocketmq", "rabbitmq")),
    Option("view", ", ".join(_VIEWS), "messages", "what the rows are", parse=values.choice(*_VIEWS)),
    Option("layout", "native, kafka", "native", "kafka gives exactly the columns of Spark's Kafka source",
           parse=values.choice("native", "kafka")),
    Option("includeHeaders", "true, false", "false", "with layout=kafka: the column headers", parse=values.flag),
    Option("columns", "comma list", None, "the projection; .schema(...) does the same", parse=values.columns),
    Option("topic", "comma or JSON list", None, "topics; of RabbitMQ, queues", parse=values.names,
           aliases=("subscribe", "queue"), aliases_of={"queue": RABBITMQ}),
    Option("topicPattern", "Java-style regex", None, "topics, or queues, that match as a whole", parse=java_pattern,
           aliases=("subscribePattern", "queuePattern"), aliases_of={"queuePattern": RABBITMQ}),
    Option("assign", 'JSON {"orders": [0, 1]}', None, "exact queues; several stores: their names as outer keys",
           parse=assignment),
    Option("startingOffsets", "earliest, JSON, last:100, group:billing", "earliest", "where each queue starts",
           parse=bound(starting=True)),
    Option("endingOffsets", "latest, JSON, last:100, group:billing", "latest", "where each queue ends, exclusive",
           parse=bound(starting=False)),
    Option("startingTimestamp", "epoch ms, ISO 8601, -10m, -2h, -1d", None, "by store time, inclusive"),
    Option("endingTimestamp", "epoch ms, ISO 8601, -10m, -2h, -1d", None, "by store time, exclusive"),
    Option("scan", "queues, log", "queues", "through the consume queues, or the commit log alone in physical order",
           parse=values.choice("queues", "log")),
    Option("decompress", "true, false", "true", "false leaves bodies as stored", parse=values.flag, engine=ROCKETMQ),
    Option("mode", "FAILFAST, DROPMALFORMED, PERMISSIVE", "FAILFAST", "what becomes of damaged messages",
           parse=values.choice("FAILFAST", "DROPMALFORMED", "PERMISSIVE")),
    Option("verifyCrc", "true, false", "true", "check each body's CRC", parse=values.flag),
    Option("failOnDataLoss", "true, false", "true", "fail when offsets asked for no longer exist", parse=values.flag),
    Option("minPartitions", "number", None, "default: the driver's cores, each partition at least 16 MB",
           parse=values.count),
    Option("maxRecordsPerPartition", "number", None, "cuts larger partitions", parse=values.count),
    Option("maxBytesPerPartition", "bytes, k/m/g", "256m", "cuts larger partitions, by bytes of the log",
           parse=values.size),
    Option("recovery", "auto, 4.9, 5.x, none", "auto", "whose rules say what a crashed or damaged store serves",
           parse=values.choice("auto", "4.9", "5.x", "none")),
    Option("commitLogPath", "comma list of directories", None, "a commit log elsewhere (storePathCommitLog)",
           parse=values.names, engine=ROCKETMQ),
    Option("useIndex", "true, false", "true", "false: lookups scan", parse=values.flag, engine=ROCKETMQ),
    Option("key", "one key, or a JSON list", None, "messages with this word in KEYS", parse=values.texts),
    Option("msgId", "id, or a JSON list", None, "UNIQ_KEY or offset id", parse=values.message_ids),
    Option("tag", "A, A || B, *", None, "RocketMQ tag expression", parse=values.tag_expression),
    Option("pushdown", "false, true", "false", "filters of where(...) reach the store", parse=values.flag),
    Option("vhost", "comma or JSON list", None, "virtual hosts", parse=values.names, engine=RABBITMQ),
    Option("includeAcked", "false, true", "false", "acknowledged entries that are still on disk, column acked",
           parse=values.flag, engine=RABBITMQ),
    Option("maxOffsetsPerTrigger", "number", None, "most messages of a micro-batch", STREAM),
    Option("maxBytesPerTrigger", "bytes, k/m/g", None, "most bytes of a micro-batch", STREAM),
    Option("minOffsetsPerTrigger", "number", None, "fewest messages of a micro-batch", STREAM),
    Option("maxTriggerDelay", "duration", None, "how long minOffsetsPerTrigger may wait", STREAM),
    Option("queues", "number", "4", "queue count of a new topic", WRITE, engine=ROCKETMQ),
    Option("preserve", "false, true", "false", "keep offsets, times and raw bodies", WRITE, engine=ROCKETMQ),
    Option("publish", "append, shards", "append", "into one store, or a store per task", WRITE, engine=ROCKETMQ),
    Option("commitLogFileSize", "bytes", None, "of a new store", WRITE, engine=ROCKETMQ),
    Option("consumeQueueFileEntries", "number", None, "of a new store", WRITE, engine=ROCKETMQ),
    Option("indexSlots", "number", None, "of a new store", WRITE, engine=ROCKETMQ),
    Option("indexEntries", "number", None, "of a new store", WRITE, engine=ROCKETMQ),
    Option("lockTimeout", "duration", "60s", "how long a write waits for another", WRITE),
    Option("storeHost", "ip:port", "127.0.0.1:10911", "of written messages", WRITE, engine=ROCKETMQ),
    Option("assignMsgId", "false, true", "false", "give rows without UNIQ_KEY one", WRITE, engine=ROCKETMQ),
    Option("txnAppId", "text", None, "makes a batch write idempotent, with txnVersion", WRITE, engine=ROCKETMQ),
    Option("txnVersion", "number", None, "makes a batch write idempotent, with txnAppId", WRITE, engine=ROCKETMQ),
    Option("exchange", "name", None, "of written RabbitMQ messages", WRITE, engine=RABBITMQ),
    Option("queueArguments", "JSON object", None, "of the queue that the option queue names", WRITE, engine=RABBITMQ),
    *(Option(name, "as in RabbitMQ", None, "RabbitMQ's own setting", WRITE, engine=RABBITMQ) for name in (
        "queue_index_segment_entry_count", "queue_index_max_journal_entries", "queue_index_embed_msgs_below",
        "msg_store_io_batch_size", "msg_store_credit_disc_bound", "msg_store_file_size_limit",
        "queue_explicit_gc_run_operation_threshold", "lazy_queue_explicit_gc_run_operation_threshold",
        "vm_memory_high_watermark", "vm_memory_high_watermark_paging_ratio", "target_ram_count",
    )),
)  # fmt: skip

_LATER = {
    STREAM: "belongs to streaming reads, which are not in this version of mqstore; leave it out",
    WRITE: "belongs to writing; leave it out when reading",
}
# What Spark adds on its own: the place of a catalog table, the paths of load([a, b]).
_SPARKS_OWN = {"paths", "location", "provider", "owner"}
# Options of Spark's Kafka source that say how to talk to a Kafka broker, or that it ignores in a batch.
_KAFKA_ONLY = {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
_BY_NAME = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
_SPOKEN = {ROCKETMQ: "RocketMQ", RABBITMQ: "RabbitMQ"}
_SELECTIONS = ("topic", "topicPattern", "assign")


@dataclass(frozen=True)
class ReadOptions:
    """A load's options, parsed. `ignored` are options of a Kafka job that mean nothing here.

    `of_one_engine` are those that only one engine's stores know: (engine, name as given, text).
    """

    engine: str | None
    view: str
    kafka: bool
    include_headers: bool
    columns: tuple[str, ...] | None
    topics: tuple[str, ...] | None
    topic_pattern: str | None
    assign: Assignment | None
    start: Bound
    stop: Bound
    start_ms: int | None
    stop_ms: int | None
    scan: str
    decompress: bool
    mode: str
    verify_crc: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records: int | None
    max_bytes: int
    recovery: str
    commit_log_path: tuple[str, ...]
    use_index: bool
    keys: tuple[str, ...] | None
    message_ids: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    pushdown: bool
    vhosts: tuple[str, ...] | None
    include_acked: bool
    of_one_engine: tuple[tuple[str, str, str], ...]
    ignored: tuple[str, ...]

    @property
    def store_options(self) -> dict[str, str]:
        """What `open_store` takes besides the path and the engine, without what has its default."""
        found = {} if self.recovery == "auto" else {"recovery": self.recovery}
        if self.commit_log_path:
            found["commitLogPath"] = ",".join(self.commit_log_path)
        return found


def check_engine(options: Sequence[tuple[str, str, str]], engine: str, path: str) -> None:
    """OptionError for the first of `options` (engine, name, text) that the stores of `engine` do not know."""
    for wanted, name, text in options:
        if wanted != engine:
            belongs, here = _SPOKEN[wanted], _SPOKEN[engine]
            raise OptionError(name, text, f"belongs to {belongs} stores, and {path} is a {here} store; leave it out")


def read_options(raw: Mapping[str, str], now_ms: int | None = None) -> ReadOptions:
    """The options of a batch read; `now_ms` is what `-10m` counts from.

    Raises OptionError for an unknown name (with the close ones), a wrong value, one thing said twice, options that
    exclude each other, and options of what this version does not do.
    """
    kafka = next((text.strip().lower() == "kafka" for name, text in raw.items() if name.lower() == "layout"), False)
    given, ignored = _known(raw, kafka)
    found = _parsed(given, int(time.time() * 1000) if now_ms is None else now_ms)
    selections = [given[name][0] for name in _SELECTIONS if name in given]
    if len(selections) > 1:
        raise OptionError(
            selections[1],
            given[_canonical(selections[1])][1],
            f"excludes {selections[0]}; give one of topic (subscribe), topicPattern (subscribePattern), assign",
        )
    if found["includeHeaders"] and not kafka:
        raise OptionError(
            "includeHeaders", "true", "goes with layout=kafka; the native layout has the column properties"
        )
    return ReadOptions(
        engine=None if found["engine"] == "auto" else found["engine"],
        view=found["view"], kafka=kafka, include_headers=found["includeHeaders"], columns=found["columns"],
        topics=found["topic"], topic_pattern=found["topicPattern"], assign=found["assign"],
        start=found["startingOffsets"], stop=found["endingOffsets"],
        start_ms=found["startingTimestamp"], stop_ms=found["endingTimestamp"],
        scan=found["scan"], decompress=found["decompress"], mode=found["mode"], verify_crc=found["verifyCrc"],
        fail_on_data_loss=found["failOnDataLoss"], min_partitions=found["minPartitions"],
        max_records=found["maxRecordsPerPartition"], max_bytes=found["maxBytesPerPartition"],
        recovery=found["recovery"], commit_log_path=found["commitLogPath"] or (), use_index=found["useIndex"],
        keys=found["key"], message_ids=found["msgId"], tags=found["tag"], pushdown=found["pushdown"],
        vhosts=found["vhost"], include_acked=found["includeAcked"], of_one_engine=_of_one_engine(given),
        ignored=ignored,
    )  # fmt: skip


def _known(raw: Mapping[str, str], kafka: bool) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Canonical name → (name as given, text), and the names that a Kafka job brings along."""
    given: dict[str, tuple[str, str]] = {}
    ignored = []
    for name, text in sorted(raw.items()):
        option = _BY_NAME.get(name.lower())
        if name.lower() in _SPARKS_OWN or (option is not None and option.use == SPARK):
            continue
        from_kafka = name.lower().startswith("kafka.") or name.lower() in _KAFKA_ONLY
        if kafka and (from_kafka or (option is not None and option.use == STREAM)):
            ignored.append(name)
            continue
        if option is None:
            raise _unknown(name, text, from_kafka)
        if option.use != READ:
            _refuse_later(option, text)
            continue
        spelled = next(each for each in (option.name, *option.aliases) if each.lower() == name.lower())
        if option.name in given and given[option.name][1] != text:
            raise OptionError(spelled, text, f"is another name of {given[option.name][0]}; give one of the two")
        given[option.name] = (spelled, text)
    return given, tuple(ignored)


def _of_one_engine(given: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Those that one engine's stores alone know; one with its default as value says nothing."""
    found = []
    for name, (spelled, text) in given.items():
        option = _BY_NAME[name.lower()]
        engine = option.engine or option.aliases_of.get(spelled)
        if engine is not None and (option.default is None or text.strip().lower() != option.default):
            found.append((engine, spelled, text))
    return tuple(found)


def _parsed(given: Mapping[str, tuple[str, str]], now_ms: int) -> dict[str, Any]:
    instant = values.instant_ms(now_ms)
    found: dict[str, Any] = {}
    for option in OPTIONS:
        if option.use != READ:
            continue
        parse = option.parse or (instant if option.name.endswith("Timestamp") else _text)
        if option.name in given:
            found[option.name] = parse(*given[option.name])
        else:
            found[option.name] = None if option.default is None else parse(option.name, option.default)
    return found


def _unknown(name: str, text: str, from_kafka: bool) -> OptionError:
    if from_kafka:
        return OptionError(name, text, "belongs to Kafka; it is ignored with layout=kafka, otherwise leave it out")
    known = [each for option in OPTIONS for each in (option.name, *option.aliases)]
    near = closest(name, known) or [each for each in known if name.lower() in each.lower()][:3]
    hint = f"did you mean {values.either(near)}?" if near else f"the options of a read are {_read_names()}"
    return OptionError(name, text, f"there is no such option; {hint}")


def _read_names() -> str:
    return ", ".join(option.name for option in OPTIONS if option.use == READ)


def _refuse_later(option: Option, text: str) -> None:
    if option.default is None or text.strip().lower() != option.default:
        raise OptionError(option.name, text, _LATER[option.use])


def _canonical(name: str) -> str:
    return _BY_NAME[name.lower()].name
