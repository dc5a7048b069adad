"""The messages that a command selects: turns its switches into the request that each store's snapshot plans.

Values are parsed as options of a read, so that a shell accepts what Spark accepts. A shell accepts three things more:
`--queue`, a bare number for `--start` and `--stop`, and `-10` for the last ten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from command_line.stores import NamedStore, Stores
from command_line.switches import MESSAGE_OPTIONS, QUEUE, STORE_OPTIONS, parameter_of
from storage_core.errors import OptionError, choices
from storage_core.option_table import read_options
from storage_core.options import values
from storage_core.options.read import ReadOptions, check_engine
from storage_core.store import EARLIEST, LATEST, OffsetBound, Predicate, QueueKey, Scan, ScanRequest, Snapshot

STORAGE = "storage"
_LAST = re.compile(r"-(\d{1,18})")
Given = Mapping[str, object]
"""A command's arguments by parameter: a text, a tuple of texts for a repeated switch, None if not given."""


@dataclass(frozen=True)
class Chosen:
    """A store that the selection touches, its snapshot, and its part of the selection."""

    named: NamedStore
    snapshot: Snapshot
    request: ScanRequest


@dataclass(frozen=True)
class Selection:
    """The values of a command's switches.

    `queues` are those of --queue; `start` and `stop` are bare numbers given to --start and --stop.
    """

    options: ReadOptions
    queues: tuple[str, ...] = ()
    start: int | None = None
    stop: int | None = None

    @property
    def store_options(self) -> dict[str, str]:
        """The options for `open_store`."""
        return self.options.store_options

    def chosen(self, stores: Stores, columns: tuple[str, ...] | None = None) -> list[Chosen]:
        """Each store that the selection touches, with its request; `columns` apply if the switches name none.

        Of several stores, one that cannot be read is reported and left out. Raises OptionError for a topic that no
        store has, and for switches that exclude each other.
        """
        kind = self.options.queue_type
        among = [named for named in stores if kind in (None, named.store.queue_type)]
        if not among and stores.stores:
            check_engine(self.options.of_one_engine, stores.stores[0].store.engine, stores.stores[0].store.path)
            raise OptionError("queueType", str(kind), f"there are no such queues at {stores.stores[0].store.path}")
        found = [each for _, each in stores.gather(lambda named: self._of_store(named, stores, columns), among)]
        found = _alike(found)
        if len(found) <= 1 or self.options.request.scan is Scan.LOG:
            return found
        return _with_topics(found)

    def warn(self, stores: Stores) -> None:
        """Reports what reads through the queues of these stores leave out."""
        if self.options.request.scan is Scan.QUEUES:
            stores.gather(stores.warn)

    def _of_store(self, named: NamedStore, stores: Stores, columns: tuple[str, ...] | None) -> Chosen:
        check_engine(self.options.of_one_engine, named.store.engine, named.store.path)
        snapshot = named.store.snapshot()
        options, names = self.options, stores.names
        request = replace(
            options.request,
            columns=options.columns or columns,
            assign=options.assign.of_store(named.name, names) if options.assign else None,
            start=options.start.of_store(named.name, names),
            stop=options.stop.of_store(named.name, names),
            store_name=named.name,
            predicates=() if options.vhosts is None else (Predicate("vhost", "in", tuple(options.vhosts)),),
        )
        request = self._of_queues(named, request)
        if options.columns is None and columns is not None:
            _check_template(snapshot, request)
        if self.start is not None:
            request = replace(request, start=_numbered(self.start, EARLIEST, snapshot, request, len(names) > 1))
        if self.stop is not None:
            request = replace(request, stop=_numbered(self.stop, LATEST, snapshot, request, True))
        return Chosen(named, snapshot, request)

    def _of_queues(self, named: NamedStore, request: ScanRequest) -> ScanRequest:
        """The request narrowed to --queue. A RabbitMQ queue is a topic with the one queue 0."""
        if not self.queues:
            return request
        if named.holds_queues_only:
            return replace(request, topics=(*(request.topics or ()), *self.queues))
        given = ",".join(self.queues)
        if request.topics is None or len(request.topics) != 1:
            raise OptionError(QUEUE, given, "needs exactly one --topic, the topic of the queue")
        numbers = [number for number in map(values.whole, self.queues) if number is not None]
        if len(numbers) < len(self.queues):
            raise OptionError(QUEUE, given, "must be numbers of the queues of --topic, such as 0 or 0,1")
        topic = request.topics[0]
        return replace(request, topics=None, assign=tuple((topic, number) for number in numbers))


def _check_template(snapshot: Snapshot, request: ScanRequest) -> None:
    """Raises OptionError, which names --format, for a column of its template that the store does not have."""
    try:
        snapshot.schema(request)
    except OptionError as error:
        if error.name != "columns":
            raise
        raise OptionError("--format", f"{{{error.value}}}", error.allowed) from None


def selection(given: Given) -> Selection:
    """The selection given by a command's parameters. Raises OptionError."""
    raw = {
        name: text
        for name in (*STORE_OPTIONS, *MESSAGE_OPTIONS)
        if name != STORAGE and (text := _text(name, given.get(parameter_of(name)))) is not None
    }
    raw |= _storage(given.get(STORAGE))
    start, stop = raw.get("startingOffsets", ""), raw.get("endingOffsets", "")
    numbers = {}
    for option, text in (("startingOffsets", start), ("endingOffsets", stop)):
        if text.isascii() and text.isdigit() and len(text) < 19:
            numbers[option] = int(raw.pop(option))
        elif last := _LAST.fullmatch(text):
            raw[option] = f"last:{last[1]}"
    queues = _text(QUEUE, given.get("queue"))
    return Selection(
        read_options(raw),
        () if queues is None else values.names(QUEUE, queues),
        numbers.get("startingOffsets"),
        numbers.get("endingOffsets"),
    )


def _storage(given: object) -> dict[str, str]:
    """The options given by --storage."""
    found = {}
    for text in given if isinstance(given, tuple) else ():
        name, equals, value = str(text).partition("=")
        if not equals or not name or not value:
            raise OptionError(f"--{STORAGE}", name, "is a name and a value, such as region=eu-west-1")
        found[f"{STORAGE}.{name}"] = value
    return found


def _text(option: str, value: object) -> str | None:
    """A parameter as the text of an option; a repeated one becomes one list."""
    if isinstance(value, tuple):
        if len(value) > 1:
            listed = [name for text in value for name in values.names(option, str(text))]
            return json.dumps(listed)
        return str(value[0]) if value else None
    if isinstance(value, bool):
        return "true" if value else None
    return None if value is None else str(value)


def _numbered(
    number: int, default: int, snapshot: Snapshot, request: ScanRequest, may_be_after_all: bool
) -> OffsetBound:
    """A bare number as the bound of every selected queue. If there are several, a shorter one is bounded by its end;
    unless `may_be_after_all`, a number after the ends of all of them is left, for the plan to refuse.
    """
    stops = {(info.topic, info.queue_id): info.stop for info in snapshot.queues()}
    if request.assign is not None:
        wanted: Sequence[QueueKey] = request.assign
    elif request.topics is not None:
        # A RabbitMQ store may have only hashes of its queues' names: the engine recognises the requested ones.
        named = [key for key in stops if key[0] in request.topics]
        wanted = named or [(topic, 0) for topic in request.topics]
    else:
        wanted = list(stops)
    is_bounded = len(wanted) > 1 and (may_be_after_all or any(number <= stops.get(key, number) for key in wanted))
    offsets = {key: min(number, stops.get(key, number)) if is_bounded else number for key in wanted}
    return OffsetBound(default, offsets)


def _alike(found: list[Chosen]) -> list[Chosen]:
    """If the stores have several types of queues, requests the columns of all types from each."""
    if len({each.named.store.queue_type for each in found}) < 2 or found[0].request.columns is not None:
        return found
    names = dict.fromkeys(name for each in found for name in each.snapshot.schema(each.request).names)
    return [replace(each, request=replace(each.request, columns=tuple(names))) for each in found]


def _with_topics(found: Sequence[Chosen]) -> list[Chosen]:
    """Those of several stores that have a requested topic, each with its own. Raises OptionError if none has it."""
    topics = next((each.request.topics for each in found if each.request.topics is not None), None)
    if topics is None:
        return [each for each in found if each.request.assign is None or each.request.assign]
    own = [each.snapshot.topics(topics) for each in found]
    known = sorted(set().union(*own))
    for topic in topics:
        if topic not in known:
            where = f"is in none of the {len(found)} stores"
            raise OptionError("topic", topic, f"{where}; {choices(topic, known, 'topics')}")
    narrowed = []
    for each, names in zip(found, own, strict=True):
        mine = tuple(topic for topic in topics if topic in names)
        if mine:
            narrowed.append(replace(each, request=replace(each.request, topics=mine)))
    return narrowed
