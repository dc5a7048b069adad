"""Question 9: how does a store in a bucket compare with the requests alone, and with one request at a time?

The bucket is in memory, and its answers take the time that was measured for real ones; every run reads it under another
name, so that nothing is cached from the run before.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.machine import peak_bytes
from benchmarks.make_index import key_of, write_index
from benchmarks.make_store import FIRST_MS, TOPICS, StoreShape, make_store, physical_offsets_of, topics_of
from benchmarks.measure import interleaved
from benchmarks.report import Finding, Section
from benchmarks.s3_scan import s3_scan
from storage_core import open_store
from storage_core.files import system
from storage_core.files.remote import registry, threads
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.job import JobFolder, write_json
from storage_core.store import ScanRequest, Store
from tests.support.memory_bucket import Bucket, served

METHOD = (
    "A bucket in memory, 30 ms a request. Scans: 90 MB/s a stream and 150 MB/s in all; what they are compared with is "
    "eight threads that get the same bytes in pieces of 8 MB. One request at a time is the same code with one thread; "
    "without hints, the same code that is told nothing of what is read next. A lookup is the first one in a "
    "store whose recovery is known. Contenders take turns."
)
LATENCY_S, STREAM_RATE, TOTAL_RATE = 0.03, 90e6, 150e6
COUNT, BODY_SIZE = 400_000, 900
PIECE = 8 << 20
INDEX_FILES, CHAINED = 90, 4
QUEUES = 10_000
ALL_IN_ONE = 1 << 40


class Backups:
    """A bucket with one store, each time under a new name that was never read."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self._bucket, self._path = bucket, Path(path)
        self._numbers = itertools.count()

    def uri(self) -> str:
        """The store under a new name, with no requests so far."""
        registry.forget_all()
        self._bucket.objects.clear()
        self._bucket.content.clear()
        number = next(self._numbers)
        self._bucket.add_folder(self._path, f"{number}/store")
        self._bucket.asked.clear()
        self._bucket.rounds = 0
        return f"memory://backups/{number}/store"


def remote(folder: Path, scale: float, rounds: int) -> Section:
    """Measures scans, planning and lookups."""
    section = Section("Object storage", METHOD)
    with served(Bucket()) as bucket:
        bucket.latency_s = LATENCY_S
        _scan(section, bucket, folder, scale, rounds)
        _planning(section, bucket, folder, scale, rounds)
        _lookup_in_one(section, bucket, folder, scale, rounds)
        _lookup_in_many(section, bucket, folder, scale, rounds)
    return section


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Makes all requests from one thread."""
    before = threads.TRANSFERS, threads.SMALL_TRANSFERS, threads.READS, threads.QUESTIONS
    threads.TRANSFERS = threads.SMALL_TRANSFERS = threads.READS = threads.QUESTIONS = 1
    threads._pools.clear()
    try:
        yield
    finally:
        threads.TRANSFERS, threads.SMALL_TRANSFERS, threads.READS, threads.QUESTIONS = before
        threads._pools.clear()


@contextmanager
def without_hints() -> Iterator[None]:
    """Suppresses the hints about what will be read next."""
    before = system.will_need
    system.will_need = lambda earlier, spans: earlier
    try:
        with one_at_a_time():
            yield
    finally:
        system.will_need = before


def scanned(path: str, **options: str) -> int:
    """Reads a whole store, as one task does; returns the number of its messages."""
    rows = 0
    with open_store(path, **options) as store:
        for piece in store.snapshot().plan(ScanRequest(min_partitions=1, max_bytes_per_partition=ALL_IN_ONE)):
            rows += sum(batch.num_rows for batch in piece.read())
    return rows


def _scan(section: Section, bucket: Bucket, folder: Path, scale: float, rounds: int) -> None:
    shape = StoreShape(COUNT, BODY_SIZE).scaled(scale)
    path = make_store(str(folder / "scan"), shape)
    backups = Backups(bucket, path)
    bucket.latency_s = 0
    _checked(scanned(backups.uri()), shape.message_count)
    spans = [(path, start, stop) for kind, path, start, stop in bucket.asked if kind == "get"]
    size = sum(stop - start for _, start, stop in spans)
    bucket.latency_s, bucket.stream_rate, bucket.total_rate = LATENCY_S, STREAM_RATE, TOTAL_RATE
    names = [("/".join(name.split("/")[1:]), start, stop) for name, start, stop in spans]

    def gets() -> None:
        number = backups.uri().split("/")[-2]
        wanted = [
            (bucket.objects[f"{number}/{name}"], begin, min(begin + PIECE, stop))
            for name, start, stop in names
            for begin in range(start, stop, PIECE)
        ]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda each: len(bucket.get(*each)), wanted))

    done = interleaved(
        {
            "gets": gets,
            "hints": lambda: _checked(scanned(backups.uri()), shape.message_count),
            "plain": lambda: _with(without_hints, lambda: _checked(scanned(backups.uri()), shape.message_count)),
        },
        rounds,
        warm_ups=0,
    )
    section.foreign.append(done.foreign)
    note = f"{size / 1e6 / done.wall_s('hints'):.0f} MB/s of {size / 1e6 / done.wall_s('gets'):.0f}"
    section.add(Finding("scan over eight threads that get the same bytes", done.faster("hints", "gets"), "×", 0.8,
                        note=f"{note}; {done.cpu_s('hints') / size * 1e9:.1f} CPU-s a GB"))  # fmt: skip
    section.add(Finding("scan over the same without hints", done.faster("hints", "plain"), "×", 3))
    bucket.stream_rate = bucket.total_rate = 0
    pieces = [
        (name.partition("/")[2], begin, min(begin + PIECE, stop))
        for name, start, stop in names
        for begin in range(start, stop, PIECE)
    ]
    s3_scan(section, folder, path, pieces, scanned, rounds)
    _memory(section, path)


def _with(how: Callable[[], object], work: Callable[[], object]) -> None:
    with how():  # type: ignore[attr-defined]
        work()


def _checked(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found:,} messages, and not {wanted:,}")


def _memory(section: Section, path: str) -> None:
    context = multiprocessing.get_context("spawn")
    peaks = []
    for is_remote in (False, True):
        with context.Pool(1) as pool:
            peaks.append(pool.apply(peak_of_scan, (path, is_remote)))
    section.add(Finding("memory of a scan over that of a local one", (peaks[1] - peaks[0]) / 1e6, "MB", 160, True,
                        f"{peaks[1] / 1e6:.0f} MB, local {peaks[0] / 1e6:.0f} MB"))  # fmt: skip


def peak_of_scan(path: str, is_remote: bool) -> int:
    """The peak memory of this process after a scan."""
    with served(Bucket()) as bucket:
        bucket.latency_s, bucket.stream_rate, bucket.total_rate = LATENCY_S, STREAM_RATE, 0
        scanned(Backups(bucket, path).uri() if is_remote else path)
    return peak_bytes()


def _planning(section: Section, bucket: Bucket, folder: Path, scale: float, rounds: int) -> None:
    count = max(int(QUEUES * scale), 20)
    path = make_store(str(folder / "queues"), StoreShape(10 * count, 98, count))
    backups = Backups(bucket, path)

    def plan() -> None:
        with open_store(backups.uri()) as store:
            store.snapshot().plan(ScanRequest())

    plan()
    lists = sum(request[0] != "get" for request in bucket.asked)
    names = len(bucket.objects)
    section.add(Finding(f"{count:,} queues: listings of a plan", lists, "lists", names / 1000 + 5, True,
                        f"{names:,} names; {len(bucket.asked) - lists:,} gets"))  # fmt: skip
    done = interleaved({"many": plan, "one": lambda: _with(one_at_a_time, plan)}, 1, warm_ups=0)
    section.foreign.append(done.foreign)
    section.add(Finding(f"{count:,} queues: a plan over one request at a time", done.faster("many", "one"), "×", 10,
                        note=f"{done.wall_s('many'):.1f} s and {done.wall_s('one'):.1f} s"))  # fmt: skip


def make_indexed(path: str, shape: StoreShape, files: int) -> None:
    """Makes a store with `files` index files, four entries per slot; records the geometry like a write of mqstore."""
    make_store(path, shape)
    entries = -(-2 * shape.message_count // files) + 2
    geometry = Geometry(max(entries // CHAINED, 1), entries)
    topics = pa.array([topic.decode() for topic in TOPICS], pa.string())
    times = FIRST_MS + 1 + np.arange(shape.message_count)
    write_index(path, geometry, topics, topics_of(shape), physical_offsets_of(shape), times)
    system.make_folder(JobFolder(path).folder)
    write_json(JobFolder(path).state, {"index": [geometry.slots, geometry.entries]})


class Lookups:
    """First lookups of one key each in a store with index files, whose recovery is known."""

    def __init__(self, bucket: Bucket, folder: Path, scale: float, files: int) -> None:
        # A lookup searches each topic: in a store with four, four chains in each file.
        self.shape = StoreShape(COUNT, 98, topic_count=1 if files == 1 else 4).scaled(scale)
        path = str(folder / f"index{files}")
        make_indexed(path, self.shape, files)
        self._bucket, self._backups = bucket, Backups(bucket, path)
        self._opened: list[Store] = []
        self.requests: list[int] = []
        self.waits: list[int] = []
        self.everything: list[int] = []

    def reopen(self) -> None:
        """Opens the store under a new name, and plans a scan of it."""
        while self._opened:
            self._opened.pop().close()
        self._opened.append(open_store(self._backups.uri()))
        self._opened[0].snapshot().plan(ScanRequest())
        self._bucket.asked.clear()
        self._bucket.rounds = 0

    def find(self, number: int, how: Callable[[], object] = nullcontext) -> None:
        """Looks for the key of a message."""
        topic = TOPICS[topics_of(self.shape)[number]].decode()
        with how():  # type: ignore[attr-defined]
            _checked(sum(batch.num_rows for batch in self._opened[0].find(key=key_of(number), topic=topic)), 1)
        all_requests = self._bucket.asked
        self.requests.append(sum("/index/" in each[1] for each in all_requests))
        # Requests for records and entries of queues, and the listing, are made one after another.
        self.waits.append(self._bucket.rounds - len(all_requests) + self.requests[-1])
        self.everything.append(len(all_requests))


def _lookup_in_one(section: Section, bucket: Bucket, folder: Path, scale: float, rounds: int) -> None:
    lookups = Lookups(bucket, folder, scale, 1)
    for number in range(1, rounds + 1):  # other keys have longer and shorter chains
        lookups.reopen()
        lookups.find(lookups.shape.message_count * number // (rounds + 1))
    note = f"{median(lookups.everything):.0f} with those for the record, its queue's entry and a listing"
    section.add(Finding("one key, 1 index file: requests for it, first use", median(lookups.requests), "requests",
                        12, True, f"at most {max(lookups.requests)}; {note}"))  # fmt: skip
    section.add(Finding("one key, 1 index file: rounds of them", median(lookups.waits), "rounds", 8, True,
                        f"at most {max(lookups.waits)}"))  # fmt: skip


def _lookup_in_many(section: Section, bucket: Bucket, folder: Path, scale: float, rounds: int) -> None:
    lookups = Lookups(bucket, folder, scale, INDEX_FILES)
    number = lookups.shape.message_count // 3
    contenders = {"many": lambda: lookups.find(number), "one": lambda: lookups.find(number, one_at_a_time)}
    done = interleaved(contenders, min(rounds, 2), warm_ups=0, between=lookups.reopen)
    section.foreign.append(done.foreign)
    section.add(Finding(f"one key, {INDEX_FILES} index files: over one request at a time", done.faster("many", "one"),
                        "×", 10, note=f"{done.wall_s('many'):.2f} s and {done.wall_s('one'):.2f} s; "
                                      f"{median(lookups.everything):.0f} requests"))  # fmt: skip
