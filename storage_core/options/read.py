"""The options of a read, and the parser of a load's options: case-insensitive names, aliases, exact errors.

`values`, `offsets` and `topic_pattern` parse single values; the engines know which stores, topics and columns exist.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError, closest, either
from storage_core.options import values
from storage_core.options.offsets import Assignment, Bound, assignment, bound
from storage_core.options.option import RABBITMQ, READ, ROCKETMQ, SPARK, STREAM, WRITE, Option, by_name
from storage_core.options.topic_pattern import java_pattern
from storage_core.options.values import as_text
from storage_core.store import Mode, Scan, ScanRequest

VIEWS = ("messages", "queues", "topics", "segments", "index", "offsets", "damage", "raft")

READ_OPTIONS: tuple[Option, ...] = (
    Option("path", "directory", None, "a store, or a folder of stores; load([a, b]) takes several", SPARK),
    Option("engine", "auto, rocketmq, rabbitmq", "auto", "normally seen from the directory",
           parse=values.choice("auto", ROCKETMQ, RABBITMQ)),
    Option("view", ", ".join(VIEWS), "messages", "what the rows are", parse=values.choice(*VIEWS)),
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
    Option("commitLogPath", "comma list of directories", None, "a commit log outside of STORE (storePathCommitLog)",
           parse=values.directories, engine=ROCKETMQ),
    Option("useIndex", "true, false", "true", "false: lookups scan", parse=values.flag, engine=ROCKETMQ),
    Option("key", "one key, or a JSON list", None, "messages with this word in KEYS", parse=values.texts),
    Option("msgId", "id, or a JSON list", None, "UNIQ_KEY or offset id", parse=values.message_ids),
    Option("tag", "A, A || B, *", None, "RocketMQ tag expression", parse=values.tag_expression),
    Option("pushdown", "false, true", "false", "filters of where(...) reach the store", parse=values.flag),
    Option("vhost", "comma or JSON list", None, "virtual hosts", parse=values.names, engine=RABBITMQ),
    Option("queueType", "classic, quorum, stream", None, "the queues of this type alone", engine=RABBITMQ,
           parse=values.choice("classic", "quorum", "stream")),
    Option("commit", "end, applied", "end", "quorum queues: the whole log counts, or only what is committed for sure",
           parse=values.choice("end", "applied"), engine=RABBITMQ),
    Option("asOf", "epoch ms", None, "quorum queues: leave out messages that had expired by then", parse=values.count,
           engine=RABBITMQ),
    Option("includeAcked", "false, true", "false", "acknowledged entries that are still on disk, column acked",
           parse=values.flag, engine=RABBITMQ),
    Option("maxOffsetsPerTrigger", "number", None, "most messages of a micro-batch", STREAM, values.count),
    Option("maxBytesPerTrigger", "bytes, k/m/g", None, "most bytes of a micro-batch", STREAM, values.size),
    Option("minOffsetsPerTrigger", "number", None, "fewest messages of a micro-batch", STREAM, values.count),
    Option("maxTriggerDelay", "duration", "15m", "how long minOffsetsPerTrigger may wait", STREAM, values.duration_s),
)  # fmt: skip

_MISPLACED = {
    STREAM: "belongs to streaming reads; leave it out, or read with readStream",
    WRITE: "belongs to writing; leave it out when reading",
}
_BATCH_ONLY = {
    "endingOffsets": "a stream has no end; leave it out, or read a batch",
    "endingTimestamp": "a stream has no end; leave it out, or read a batch",
    "scan": "a stream goes through the queues; leave it out, or read a batch",
    "view": "a stream reads messages; leave it out, or read the view in a batch",
    "includeAcked": "a stream reads what is not acknowledged; leave it out, or read a batch",
    "pushdown": "Spark hands no filters to a stream; use key, msgId, tag or topic",
}
"""Options of a read that a stream rejects unless they have their defaults."""
STORAGE = "storage."
"""The prefix of the options that configure access to a URI; `open_store` checks them."""
# What Spark adds on its own: the location of a catalog table, the paths of load([a, b]).
SPARKS_OWN = frozenset({"paths", "location", "provider", "owner"})
# Options of Spark's Kafka source that say how to talk to a Kafka broker, or that it ignores in a batch.
_KAFKA_ONLY = {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
_BY_NAME = by_name(READ_OPTIONS)
_PRODUCT_NAMES = {ROCKETMQ: "RocketMQ", RABBITMQ: "RabbitMQ"}
_SELECTIONS = ("topic", "topicPattern", "assign")


@dataclass(frozen=True)
class TriggerLimits:
    """How much one micro-batch of a stream reads; None for no limit. The delay is in seconds."""

    most_messages: int | None
    most_bytes: int | None
    fewest_messages: int | None
    longest_delay_s: float


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a load.

    `request` holds everything that means the same in every store of the load; `assign`, `start` and `stop` are resolved
    for each store by its name. `of_one_engine` are options that only one engine's stores support: (engine, name as
    given, text). `ignored` are options of a Kafka job that mean nothing here, `limits` those of a stream's triggers,
    `storage` those that configure access to a URI: some are secret.
    """

    request: ScanRequest
    engine: str | None
    view: str
    kafka: bool
    include_headers: bool
    assign: Assignment | None
    start: Bound
    stop: Bound
    min_partitions: int | None
    recovery: str
    commit_log_path: tuple[str, ...]
    pushdown: bool
    vhosts: tuple[str, ...] | None
    queue_type: str | None
    commit: str
    as_of_ms: int | None
    of_one_engine: tuple[tuple[str, str, str], ...]
    ignored: tuple[str, ...]
    limits: TriggerLimits
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The selected columns, None for all."""
        return self.request.columns

    @property
    def place_options(self) -> dict[str, str]:
        """The options for `find_stores`: those that say where the files are, and how they are reached."""
        log = {"commitLogPath": ",".join(self.commit_log_path)} if self.commit_log_path else {}
        return {**log, **dict(self.storage)}

    @property
    def store_options(self) -> dict[str, str]:
        """The options for `open_store` besides the path and the engine, without those that have their default."""
        found = {} if self.recovery == "auto" else {"recovery": self.recovery}
        if self.commit != "end":
            found["commit"] = self.commit
        if self.as_of_ms is not None:
            found["asOf"] = str(self.as_of_ms)
        return {**found, **self.place_options}


def check_engine(options: Sequence[tuple[str, str, str]], engine: str, path: str) -> None:
    """Raises OptionError for the first of `options` (engine, name, text) that the stores of `engine` do not support."""
    for wanted, name, text in options:
        if wanted != engine:
            belongs, here = _PRODUCT_NAMES[wanted], _PRODUCT_NAMES[engine]
            raise OptionError(name, text, f"belongs to {belongs} stores, and {path} is a {here} store; leave it out")


def of_one_engine(options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Those of the options of a read that only one engine's stores support: (engine, name as given, text)."""
    given = [(name, value, _BY_NAME.get(name.lower())) for name, value in options.items() if value is not None]
    return [(known.engine, name, as_text(value)) for name, value, known in given if known and known.engine]


def parse_read_options(
    raw: Mapping[str, str], written: Sequence[Option], now_ms: int | None = None, stream: bool = False
) -> ReadOptions:
    """The options of a batch read, or of a stream; `-10m` is relative to `now_ms`. `written` are the options of a
    write, to distinguish a misplaced one from a misspelt one.

    Raises OptionError for an unknown name (with similar ones), a wrong value, the same option given twice with
    different texts, options that exclude each other, and options that this version does not support.
    """
    kafka = next((text.strip().lower() == "kafka" for name, text in raw.items() if name.lower() == "layout"), False)
    storage = tuple(sorted((name, text) for name, text in raw.items() if name.lower().startswith(STORAGE)))
    raw = {name: text for name, text in raw.items() if not name.lower().startswith(STORAGE)}
    given, ignored = _known(raw, kafka, written, stream)
    found = _parsed(given, int(time.time() * 1000) if now_ms is None else now_ms, stream)
    if stream:
        _refuse_batch_options(given)
    selections = [given[name][0] for name in _SELECTIONS if name in given]
    if len(selections) > 1:
        raise OptionError(
            selections[1],
            given[_BY_NAME[selections[1].lower()].name][1],
            f"excludes {selections[0]}; give one of topic (subscribe), topicPattern (subscribePattern), assign",
        )
    if found["includeHeaders"] and not kafka:
        raise OptionError(
            "includeHeaders", "true", "goes with layout=kafka; the native layout has the column properties"
        )
    fewest, most = found["minOffsetsPerTrigger"], found["maxOffsetsPerTrigger"]
    if fewest is not None and most is not None and fewest > most:
        raise OptionError("minOffsetsPerTrigger", str(fewest), f"is more than maxOffsetsPerTrigger, {most}; give less")
    return ReadOptions(
        request=_request(found),
        engine=None if found["engine"] == "auto" else found["engine"],
        view=found["view"], kafka=kafka, include_headers=found["includeHeaders"], assign=found["assign"],
        start=found["startingOffsets"], stop=found["endingOffsets"], min_partitions=found["minPartitions"],
        recovery=found["recovery"], commit_log_path=found["commitLogPath"] or (), pushdown=found["pushdown"],
        vhosts=found["vhost"], queue_type=found["queueType"], commit=found["commit"], as_of_ms=found["asOf"],
        of_one_engine=_of_one_engine(given), ignored=ignored,
        limits=TriggerLimits(
            found["maxOffsetsPerTrigger"], found["maxBytesPerTrigger"], found["minOffsetsPerTrigger"],
            found["maxTriggerDelay"],
        ),
        storage=storage,
    )  # fmt: skip


def _request(found: Mapping[str, Any]) -> ScanRequest:
    return ScanRequest(
        columns=found["columns"], topics=found["topic"], topic_pattern=found["topicPattern"],
        start_ms=found["startingTimestamp"], stop_ms=found["endingTimestamp"],
        keys=found["key"], message_ids=found["msgId"], tags=found["tag"],
        scan=Scan(found["scan"]), mode=Mode(found["mode"]), verify_crc=found["verifyCrc"],
        decompress=found["decompress"], fail_on_data_loss=found["failOnDataLoss"], use_index=found["useIndex"],
        include_acked=found["includeAcked"], max_records_per_partition=found["maxRecordsPerPartition"],
        max_bytes_per_partition=found["maxBytesPerPartition"],
    )  # fmt: skip


def _refuse_batch_options(given: Mapping[str, tuple[str, str]]) -> None:
    for name, why in _BATCH_ONLY.items():
        default = _BY_NAME[name.lower()].default
        if name in given and (default is None or given[name][1].strip().lower() != default):
            raise OptionError(given[name][0], given[name][1], why)


def _known(
    raw: Mapping[str, str], kafka: bool, written: Sequence[Option], stream: bool
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Option name → (name as given, text), and the names of a Kafka job's options that are ignored."""
    given: dict[str, tuple[str, str]] = {}
    ignored = []
    for name, text in sorted(raw.items()):
        option = _BY_NAME.get(name.lower())
        if name.lower() in SPARKS_OWN or (option is not None and option.use == SPARK):
            continue
        from_kafka = name.lower().startswith("kafka.") or name.lower() in _KAFKA_ONLY
        if kafka and (from_kafka or (option is not None and option.use == STREAM and not stream)):
            ignored.append(name)
            continue
        if option is None or option.use not in ((READ, STREAM) if stream else (READ,)):
            _refuse(name, text, from_kafka, (*READ_OPTIONS, *written))
            continue
        spelled = next(each for each in option.names if each.lower() == name.lower())
        if option.name in given and given[option.name][1] != text:
            raise OptionError(spelled, text, f"is another name of {given[option.name][0]}; give one of the two")
        given[option.name] = (spelled, text)
    return given, tuple(ignored)


def _refuse(name: str, text: str, from_kafka: bool, every: Sequence[Option]) -> None:
    """Raises OptionError for an option that does not belong to this read, unless it is a known one with its default."""
    if from_kafka:
        raise OptionError(name, text, "belongs to Kafka; it is ignored with layout=kafka, otherwise leave it out")
    option = by_name(every).get(name.lower())
    if option is not None:
        if option.default is None or text.strip().lower() != option.default:
            raise OptionError(option.name, text, _MISPLACED[option.use])
        return
    known = [each for option in every for each in option.names]
    near = closest(name, known) or [each for each in known if name.lower() in each.lower()][:3]
    reads = ", ".join(option.name for option in READ_OPTIONS if option.use == READ)
    hint = f"did you mean {either(near)}?" if near else f"the options of a read are {reads}"
    raise OptionError(name, text, f"there is no such option; {hint}")


def _of_one_engine(given: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """The options that only one engine's stores support, except those with their default value."""
    found = []
    for name, (spelled, text) in given.items():
        option = _BY_NAME[name.lower()]
        engine = option.engine or option.aliases_of.get(spelled)
        if engine is not None and (option.default is None or text.strip().lower() != option.default):
            found.append((engine, spelled, text))
    return tuple(found)


def _parsed(given: Mapping[str, tuple[str, str]], now_ms: int, stream: bool) -> dict[str, Any]:
    instant = values.instant_ms(now_ms)
    found: dict[str, Any] = {}
    for option in READ_OPTIONS:
        if option.use not in (READ, STREAM):
            continue
        parse = instant if option.name.endswith("Timestamp") else option.parse
        if stream and option.name == "startingOffsets":
            parse = bound(starting=True, of_stream=True)
        if option.name in given:
            found[option.name] = parse(*given[option.name])
        else:
            found[option.name] = None if option.default is None else parse(option.name, option.default)
    return found
