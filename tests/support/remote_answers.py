"""Compares what a store returns from object storage or HDFS and from disk: tables, errors and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError
from storage_core.store import Mode, Scan, ScanRequest, Store
from tests.golden import archive
from tests.support.sampling import sample

ROCKETMQ_VIEWS = ("queues", "topics", "segments", "index", "offsets", "damage")
RABBITMQ_VIEWS = ("queues", "segments", "damage")
SPARSE = "defaults-4.9.3"
"""The fixture whose files have their default sizes: gigabytes of zeros, for which one pass is enough."""


@dataclass(frozen=True)
class Twins:
    """A local directory, and the URI of its copy."""

    directory: Path
    uri: str
    options: dict[str, str] = field(default_factory=dict)

    def assert_same(self, question: Callable[[Store], pa.Table]) -> None:
        """Asserts that both stores return the same table or raise the same error."""
        answers = []
        for path, options in ((str(self.directory), {}), (self.uri, self.options)):
            try:
                with open_store(path, **options) as store:
                    answers.append(self._same_paths(question(store)))
            except MqStoreError as error:
                answers.append(str(error).replace(self.uri, str(self.directory)))
        local, remote = answers
        assert type(local) is type(remote), answers
        if isinstance(local, pa.Table):
            assert [name for name in local.column_names if not local[name].equals(remote[name])] == []
            assert local.schema == remote.schema
        else:
            assert local == remote

    def _same_paths(self, table: pa.Table) -> pa.Table:
        for number, column in enumerate(table.schema):
            if column.type == pa.string():
                replaced = pc.replace_substring(table.column(number), self.uri, str(self.directory))
                table = table.set_column(number, column, replaced)
        return table


def assert_rocketmq_same(name: str, twins: Twins) -> None:
    """Compares both scans, two modes, and all views."""
    for scan in Scan:
        for mode in (Mode.FAILFAST, Mode.PERMISSIVE):
            request = ScanRequest(scan=scan, mode=mode, min_partitions=3 if scan is Scan.QUEUES else 1)
            if name != SPARSE or (scan, mode) != (Scan.LOG, Mode.PERMISSIVE):
                twins.assert_same(_rows_of(request))
    for view in ROCKETMQ_VIEWS:
        if name != SPARSE or view not in ("damage", "index"):
            twins.assert_same(_view_of(view))


def assert_recorded_queries_same(name: str, twins: Twins) -> None:
    """Compares queries for a sample of the keys, times and message ids that the real store was asked for when the
    fixture was made.
    """
    requests = list(_recorded_queries(name))
    assert len(requests) >= 3
    for request in requests:
        twins.assert_same(_rows_of(request))


def assert_rabbitmq_same(twins: Twins) -> None:
    """Compares each vhost of a fixture: two modes, all views, and the state of the store."""
    local = find_stores(str(twins.directory))
    remote = [path.replace(str(twins.directory), twins.uri) for path in local]
    assert find_stores(twins.uri, **twins.options) == remote
    for path, uri in zip(local, remote, strict=True):
        vhost = Twins(Path(path), uri, twins.options)
        for mode in (Mode.DROPMALFORMED, Mode.PERMISSIVE):
            vhost.assert_same(_rows_of(ScanRequest(mode=mode, min_partitions=2)))
        for view in RABBITMQ_VIEWS:
            vhost.assert_same(_view_of(view))
        with open_store(path) as on_disk, open_store(uri, **twins.options) as copied:
            assert copied.state() == on_disk.state()


def _recorded_queries(name: str) -> Iterator[ScanRequest]:
    queries = archive.queries(name)
    keys = sorted({(line["topic"], line["key"]) for line in queries if line["kind"] == "key"})
    times = sorted({line["ts"] for line in queries if line["kind"] == "time"})
    ids = sorted({line["msgId"] for line in queries if line["kind"] == "client-id"})
    for topic, key in sample(keys, 3, f"keys {name}"):
        yield ScanRequest(topics=(topic,), keys=(key,))
    for each in sample(ids, 1, f"ids {name}"):
        yield ScanRequest(message_ids=(each,))
    for each in sample(times, 2, f"times {name}"):
        yield ScanRequest(start_ms=each)


def _rows_of(request: ScanRequest) -> Callable[[Store], pa.Table]:
    def answer(store: Store) -> pa.Table:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))

    return answer


def _view_of(name: str) -> Callable[[Store], pa.Table]:
    def answer(store: Store) -> pa.Table:
        return pa.Table.from_batches(list(store.view(name)), store.view_schema(name))

    return answer
