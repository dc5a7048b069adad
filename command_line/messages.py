"""The messages of a selection, store after store: all of them in the order of the plan, or the newest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from command_line.output.progress import ProgressLine
from command_line.selection import Chosen
from command_line.signals import stop_if_asked
from command_line.stores import Stores
from storage_core.errors import MqStoreError, OptionError
from storage_core.options.option import RABBITMQ
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, Scan, ScanPartition, ScanRequest

WORK = "reading messages"
STORED = ("storeTimestamp", "physicalOffset")
"""The columns that order the messages of RocketMQ stores by arrival time."""
OLDEST = -(1 << 63)
SPARE = 4096
"""How many messages beyond the limit are held before the older ones are dropped."""


@dataclass(frozen=True)
class Limit:
    """The maximum number of messages: the first `count` of the plan, or the newest, in order from the oldest unless
    `newest_first`.
    """

    count: int | None = None
    newest: bool = False
    newest_first: bool = False


def batches(
    chosen: Sequence[Chosen], limit: Limit, line: ProgressLine, stores: Stores | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of all stores in the requested columns. Raises the errors of planning and reading, OptionError; with
    `stores`, one of several that fails is reported and left out.
    """
    if limit.newest or limit.newest_first:
        yield from _newest(chosen, limit, line)
        return
    read = each_store(chosen, lambda each: _read(each.snapshot.plan(each.request), line), stores)
    yield from first(read, limit.count)


def each_store(
    chosen: Sequence[Chosen], read: Callable[[Chosen], Iterator[pa.RecordBatch]], stores: Stores | None
) -> Iterator[pa.RecordBatch]:
    """What `read` finds in each store; with `stores`, one of several that fails is reported and left out."""
    for each in chosen:
        try:
            yield from read(each)
        except OptionError:
            raise
        except (MqStoreError, OSError) as error:
            if stores is None:
                raise
            stores.leave_out(each.named, error)


def first(found: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; all of them for None. Batches without rows are left out."""
    for batch in found:
        if limit is not None:
            batch = batch.slice(0, min(limit, batch.num_rows))
            limit -= batch.num_rows
        if batch.num_rows:
            yield batch
        if limit == 0:
            return


def schema_of(chosen: Sequence[Chosen]) -> pa.Schema:
    """The schema of the rows. Raises OptionError if the stores are of two engines, whose columns differ."""
    schemas = [each.snapshot.schema(each.request) for each in chosen]
    if any(schema != schemas[0] for schema in schemas):
        engines = sorted({each.named.store.engine for each in chosen})
        raise OptionError("STORE", f"stores of {' and '.join(engines)}", "have different columns; add --engine")
    return schemas[0]


def _read(partitions: Sequence[ScanPartition], line: ProgressLine) -> Iterator[pa.RecordBatch]:
    total, done = sum(partition.estimated_rows for partition in partitions), 0
    for partition in partitions:
        for batch in partition.read():
            stop_if_asked()
            yield batch
            done += batch.num_rows
            line.messages_done(WORK, done, total)


def _newest(chosen: Sequence[Chosen], limit: Limit, line: ProgressLine) -> Iterator[pa.RecordBatch]:
    """The newest of all chosen messages: for RocketMQ by store time, for RabbitMQ by their place in one queue."""
    if limit.count is None:
        raise OptionError("--newest-first", "", "needs to know how many: add -n")
    ordered = _order(chosen)
    requested = schema_of(chosen).names
    columns = tuple(dict.fromkeys([*requested, *ordered]))
    kept: list[pa.RecordBatch] = []
    for each in chosen:
        request = replace(each.request, columns=columns)
        narrowed = _narrowed(request, limit.count)
        partitions = each.snapshot.plan(narrowed)
        found = _last_of(_read(partitions, line), limit.count, ordered)
        if narrowed is not request and request.mode is Mode.DROPMALFORMED and found.is_incomplete(partitions):
            # Of some queue the last messages were damaged: older ones take their places.
            found = _last_of(_read(each.snapshot.plan(request), line), limit.count, ordered)
        kept.extend(found.batches)
    if kept:
        rows = _last(kept, limit.count, ordered)
        if limit.newest_first:
            rows = rows.take(pa.array(range(len(rows) - 1, -1, -1), pa.int64()))
        yield from rows.select(requested).to_batches()


@dataclass(frozen=True)
class _Newest:
    """The newest messages of one read, and how many messages the read returned."""

    batches: list[pa.RecordBatch]
    count: int

    def is_incomplete(self, partitions: Sequence[ScanPartition]) -> bool:
        """Whether the read returned fewer messages than its partitions hold."""
        return self.count < sum(partition.estimated_rows for partition in partitions)


def _last_of(read: Iterator[pa.RecordBatch], limit: int, ordered: Sequence[str]) -> _Newest:
    kept: list[pa.RecordBatch] = []
    count = 0
    for batch in read:
        kept.append(batch)
        count += batch.num_rows
        if sum(part.num_rows for part in kept) > limit + SPARE:
            kept = _last(kept, limit, ordered).to_batches()
    return _Newest(kept, count)


def _order(chosen: Sequence[Chosen]) -> tuple[str, ...]:
    """The columns that determine which message is newer; none if the order of the plan does."""
    if not any(each.named.store.engine == RABBITMQ for each in chosen):
        return STORED
    if len(chosen) > 1 or len(chosen[0].request.topics or ()) != 1:
        raise OptionError("--last", "", "of a RabbitMQ store needs one --queue: its messages have no store time")
    return ()


def _last(kept: Sequence[pa.RecordBatch], count: int, ordered: Sequence[str]) -> pa.Table:
    rows = pa.Table.from_batches(kept)
    if ordered:
        # A damaged message has no time, and is not newer than the others.
        keys = pa.table({name: rows[name].cast(pa.int64()).fill_null(OLDEST) for name in ordered})
        rows = rows.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in ordered]))
    return rows.slice(max(0, len(rows) - count)).combine_chunks()


def _narrowed(request: ScanRequest, count: int) -> ScanRequest:
    """The request narrowed to the last `count` messages of each queue, if no other condition applies after that."""
    others = (request.start_ms, request.stop_ms, request.keys, request.message_ids, request.tags)
    plain = request.start == OffsetBound(EARLIEST) and request.stop == OffsetBound(LATEST)
    if request.scan is Scan.LOG or not plain or any(other is not None for other in others) or not count:
        return request
    return replace(request, start=OffsetBound(EARLIEST, last=count))
