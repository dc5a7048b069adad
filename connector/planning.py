"""Plans a load over its stores: which directories, which request to each, and how many partitions of each.

Cutting one store belongs to the engines, parsing to `options`, types to `schema`. Pure except for calls to the stores.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

import storage_core
from connector import kafka_layout
from connector.errors import warn
from connector.partition import KafkaPiece, MqStorePartition, ViewPiece
from connector.selection import refuse_common_topics, refuse_repeated_topics, topics_by_store
from storage_core.closable import Closable
from storage_core.errors import OptionError, UnsupportedFormatError, listing, shorten
from storage_core.options.read import ReadOptions, check_engine
from storage_core.store import Predicate, Scan, ScanPartition, ScanRequest, Snapshot, Store
from storage_core.store_names import store_names

SMALLEST_PARTITION_BYTES = 16 << 20
"""Below this size a partition costs Spark more than it saves. An explicit `minPartitions` is not limited by it."""

_LOGGER = logging.getLogger("mqstore")
STORE_COLUMN = pa.field("store", pa.string())


@dataclass(frozen=True)
class NamedStore:
    """An open store and the value of the column `store` in its rows."""

    name: str
    store: Store


Chosen = tuple[NamedStore, Snapshot, ScanRequest]
"""A store that the selection touches, its snapshot, and its part of the selection."""


class Load(Closable):
    """The stores of one `load()`, open while it is planned. A context manager.

    Raises StoreNotFoundError, UnsupportedFormatError (two engines in one load), OptionError.
    """

    def __init__(self, paths: Sequence[str], options: ReadOptions) -> None:
        self._options = options
        self._predicates: tuple[Predicate, ...] = ()
        self._stores: list[NamedStore] = []
        directories = sorted(
            {
                found
                for path in paths
                for found in storage_core.find_stores(path, options.engine, **options.place_options)
            }
        )
        if len(directories) > 1 and options.commit_log_path:
            raise OptionError(
                "commitLogPath",
                ",".join(options.commit_log_path),
                f"goes with one store, and here are {len(directories)}: {listing(directories, 4)}; load one at a time",
            )
        try:
            opened = self._of_type(self._of_vhosts([_opened(directory, options) for directory in directories]))
            names = store_names([store.path for store in opened], [store.queue_type for store in opened])
            self._stores = [NamedStore(name, store) for name, store in zip(names, opened, strict=True)]
            self._check_engines()
        except BaseException:
            self.close()
            raise

    def available(self) -> pa.Schema:
        """All columns that a row of this load may have, in order."""
        options = self._options
        if options.view != "messages":
            schema = _union([schema for _, schema in self._with_view()])
            self._check_view(schema)
            return schema.append(STORE_COLUMN) if self._several and "store" not in schema.names else schema
        if options.kafka:
            return kafka_layout.schema(options.include_headers)
        return self.native()

    @property
    def engine(self) -> str:
        """The engine of the stores."""
        return self._stores[0].store.engine

    @property
    def _word(self) -> str:
        """The engine's word for a topic, which is also the name of the column."""
        return "queue" if self.engine == "rabbitmq" else "topic"

    def only_store(self, why: str) -> NamedStore:
        """The only store of the load. Raises OptionError if there are several, with the reason `why`."""
        if self._several:
            names = [named.store.path for named in self._stores]
            raise OptionError("path", listing(names, 4), f"holds {len(names)} stores, and {why}; name one of them")
        return self._stores[0]

    def request_of(self, named: NamedStore) -> ScanRequest:
        """The load's selection as a request to one of its stores, without columns."""
        return self._request(named, None)

    def native(self) -> pa.Schema:
        """The native columns of messages, whatever the layout."""
        request = replace(self._options.request, columns=None)
        schemas = [named.store.snapshot().schema(request) for named in self._stores[:1] + self._of_other_queues()]
        return _union(schemas)

    def _with_view(self) -> list[tuple[NamedStore, pa.Schema]]:
        """The stores that have the requested view, with its schema there. Raises OptionError if there are none."""
        found, refused = [], []
        for named in self._stores:
            try:
                found.append((named, named.store.view_schema(self._options.view)))
            except OptionError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return found

    def _of_other_queues(self) -> list[NamedStore]:
        """The first store of each queue type other than the type of the load's first store."""
        first = {named.store.queue_type: named for named in reversed(self._stores)}
        return [named for kind, named in sorted(first.items()) if kind != self._stores[0].store.queue_type]

    def plan(self, columns: tuple[str, ...], predicates: Sequence[Predicate] = ()) -> list[MqStorePartition]:
        """Partitions that together hold each selected row once, in `columns`. Rows that do not satisfy the predicates,
        which refer to native columns, may be left out.

        Raises OptionError (an unknown topic, queue or view), OffsetOutOfRangeError, DataLossError.
        """
        if self._options.view != "messages":
            return self._view_pieces(columns)
        self._predicates = tuple(predicates)
        if self._options.ignored:
            warn(f"layout=kafka ignores these options of the Kafka source: {', '.join(self._options.ignored)}")
        chosen = self._requests(columns)
        pieces = self._shared(chosen)
        for named, snapshot, _ in chosen:
            # What a broker would cut off matters only to reads through the queues, and finding it walks the log.
            for line in snapshot.warnings() if self._options.request.scan is Scan.QUEUES else ():
                warn(line if line.startswith((f"{named.name}: ", named.store.path)) else f"{named.name}: {line}")
        self._log(pieces)
        return [
            MqStorePartition(
                named.store.path, KafkaPiece(piece, columns, self.engine) if self._options.kafka else piece
            )
            for (named, _, _), found in zip(chosen, pieces, strict=True)
            for piece in found
        ]

    def _log(self, pieces: Sequence[Sequence[ScanPartition]]) -> None:
        """Logs the plan in one line at INFO, because Spark's `explain` cannot show what is read."""
        every = [piece for found in pieces for piece in found]
        conditions = " and ".join(f"{p.column} {p.op} {shorten(repr(p.value))}" for p in self._predicates) or "none"
        _LOGGER.info(
            "mqstore: filters pushed: %s; the plan touches %d messages, about %d bytes, in %d files, by %d partitions",
            conditions,
            sum(piece.estimated_rows for piece in every),
            sum(piece.estimated_bytes for piece in every),
            sum(piece.file_count for piece in every),
            len(every),
        )
        traffic = [named.store.traffic for named in self._stores]
        if any(requests for requests, _ in traffic):
            requests, size = max(traffic)
            _LOGGER.info("mqstore: planning took %d requests and %d bytes over the network", requests, size)

    def close(self) -> None:
        """Closes the stores."""
        for named in self._stores:
            named.store.close()

    @property
    def _several(self) -> bool:
        return len(self._stores) > 1

    def _of_vhosts(self, opened: list[Store]) -> list[Store]:
        """The stores of the requested virtual hosts. Raises OptionError for an unknown one, with those that exist."""
        wanted = self._options.vhosts
        if wanted is None:
            return opened
        known = sorted(frozenset[str]().union(*(store.virtual_hosts for store in opened)))
        for name in wanted:
            if name not in known:
                raise OptionError("vhost", name, f"there is no such virtual host here; there are {listing(known)}")
        return [store for store in opened if store.virtual_hosts & set(wanted)]

    def _of_type(self, opened: list[Store]) -> list[Store]:
        """The stores with queues of the requested type. Raises OptionError if there are none."""
        wanted = self._options.queue_type
        found = [store for store in opened if wanted is None or store.queue_type == wanted]
        if opened and not found:
            raise OptionError("queueType", str(wanted), f"there are no such queues at {opened[0].path}")
        return found

    def _check_engines(self) -> None:
        by_engine = {named.store.engine: named.store.path for named in self._stores}
        if len(by_engine) > 1:
            places = " and ".join(f"{path} ({engine})" for engine, path in sorted(by_engine.items()))
            raise UnsupportedFormatError(
                f"{places}: stores of two engines have different columns; "
                "load one of them, or choose with the option 'engine'"
            )

    def _request(self, named: NamedStore, columns: tuple[str, ...] | None) -> ScanRequest:
        options = self._options
        names = [each.name for each in self._stores]
        request = replace(
            options.request,
            columns=columns,
            assign=options.assign.of_store(named.name, names) if options.assign else None,
            start=options.start.of_store(named.name, names),
            stop=options.stop.of_store(named.name, names),
            predicates=self._predicates + self._of_hosts(),
            store_name=named.name,
        )
        if options.kafka and columns is not None:
            return kafka_layout.native_request(request, columns, self.engine)
        return request

    def _of_hosts(self) -> tuple[Predicate, ...]:
        """The predicate for the requested virtual hosts: a store may also hold queues of others."""
        wanted = self._options.vhosts
        return () if wanted is None else (Predicate("vhost", "in", tuple(wanted)),)

    def _requests(self, columns: tuple[str, ...]) -> list[Chosen]:
        """Each store that the selection touches, with its part of the selection."""
        all_of_them = [(named, named.store.snapshot(), self._request(named, columns)) for named in self._stores]
        if self._options.kafka and len(self._options.vhosts or ()) != 1:
            for _, snapshot, request in all_of_them:
                refuse_repeated_topics(snapshot, request)
        if not self._several:
            return all_of_them
        if self._options.kafka:
            refuse_common_topics([(named.name, snapshot.queues(), request) for named, snapshot, request in all_of_them])
        return all_of_them if self._options.request.scan is Scan.LOG else self._touched(all_of_them)

    def _touched(self, several: list[Chosen]) -> list[Chosen]:
        """Those of several stores that have a queue or topic requested by name, each with only its own names."""
        if self._options.assign is not None:
            return [entry for entry in several if entry[2].assign]
        topics = self._options.request.topics
        if topics is None:
            return several
        found = {named.name: snapshot.topics(topics) for named, snapshot, _ in several}
        own = topics_by_store(found, topics, self._word)
        return [
            (named, snapshot, replace(request, topics=own[named.name]))
            for named, snapshot, request in several
            if own[named.name]
        ]

    def _shared(self, chosen: Sequence[Chosen]) -> list[list[ScanPartition]]:
        """The plan of each store; several stores share the partitions in proportion to their size."""
        wanted = self._options.min_partitions
        if len(chosen) == 1:
            return [_plan_alone(chosen[0], wanted)]
        plans = [snapshot.plan(request) for _, snapshot, request in chosen]
        sizes = [sum(piece.estimated_bytes for piece in plan) for plan in plans]
        if wanted is None:
            wanted = min(driver_cores(), sum(sizes) // SMALLEST_PARTITION_BYTES)
        if sum(map(len, plans)) >= wanted:
            return plans
        for number, share in enumerate(shares(wanted, sizes)):
            if share > len(plans[number]) > 0:
                _, snapshot, request = chosen[number]
                plans[number] = snapshot.plan(replace(request, min_partitions=share))
        return plans

    def _check_view(self, schema: pa.Schema) -> None:
        """Raises OptionError for a selection option that the view has no columns for (interface.md 45)."""
        options, request = self._options, self._options.request
        topic = self._word
        needs = {
            "topic": (request.topics, (topic,)),
            "topicPattern": (request.topic_pattern, (topic,)),
            "assign": (options.assign, (topic, "queueId") if topic == "topic" else (topic,)),
            "includeAcked": (request.include_acked or None, ("sequenceId",)),
            "startingOffsets": (options.start if options.start.narrows else None, ("queueOffset",)),
            "endingOffsets": (options.stop if options.stop.narrows else None, ("queueOffset",)),
            "startingTimestamp": (request.start_ms, ("storeTimestamp",)),
            "endingTimestamp": (request.stop_ms, ("storeTimestamp",)),
            "key": (request.keys, ("key",)),
            "msgId": (request.message_ids, ("msgId",)),
            "tag": (request.tags, ("tags",)),
            "layout": (options.kafka or None, ("body",)),
            "scan": (request.scan if request.scan is Scan.LOG else None, ("body",)),
        }
        for name, (value, wanted) in needs.items():
            if value is not None and not set(wanted) <= set(schema.names):
                raise OptionError(
                    "view", options.view, f"takes no option {name}; its columns are {listing(schema.names, 40)}"
                )

    def _view_pieces(self, columns: tuple[str, ...]) -> list[MqStorePartition]:
        available, having = self.available(), self._with_view()
        wanted = pa.schema([available.field(name) for name in columns])
        own = {named.name: schema.names for named, schema in having}
        requests = [(named, self._request(named, None)) for named, _ in having]
        if self._several and (self._options.assign or self._options.request.topics):
            touched = self._touched([(named, named.store.snapshot(), request) for named, request in requests])
            requests = [(named, request) for named, _, request in touched]
        pieces = []
        for named, request in requests:
            piece = ViewPiece(
                named.store.path, named.store.engine, self._options.store_options, self._options.view,
                request, wanted, named.name if self._several and "store" not in own[named.name] else None,
            )  # fmt: skip
            pieces.append(MqStorePartition(named.store.path, piece))
        return pieces


def _union(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all schemas, each once."""
    fields = {field.name: field for schema in schemas for field in schema}
    return pa.schema(list(fields.values()))


def _opened(directory: str, options: ReadOptions) -> Store:
    """Opens the store in a directory. Options that its engine does not support are refused before any is passed."""
    plain = storage_core.open_store(directory, options.engine, **options.place_options)
    check_engine(options.of_one_engine, plain.engine, directory)
    if not options.store_options.keys() - options.place_options.keys():
        return plain
    with plain:
        return storage_core.open_store(directory, options.engine, **options.store_options)


def _plan_alone(chosen: Chosen, wanted: int | None) -> list[ScanPartition]:
    """The plan of one store. Without `minPartitions`, a large store, which is costly to plan, is planned only once."""
    _, snapshot, request = chosen
    request = replace(request, cores=driver_cores() if wanted is None else 1)
    plan = snapshot.plan(replace(request, min_partitions=wanted or driver_cores()))
    if wanted is None:
        enough = max(1, sum(piece.estimated_bytes for piece in plan) // SMALLEST_PARTITION_BYTES)
        if enough < min(driver_cores(), len(plan)):
            return snapshot.plan(replace(request, min_partitions=enough))
    return plan


def driver_cores() -> int:
    """Cores that this process may use; planning runs on the driver."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(wanted: int, sizes: Sequence[int]) -> list[int]:
    """Shares `wanted` partitions among stores of `sizes` bytes, in proportion and rounded up; at least one each."""
    total = sum(sizes)
    if total == 0:
        return [max(1, -(-wanted // max(1, len(sizes))))] * len(sizes)
    return [max(1, -(-wanted * size // total)) for size in sizes]
