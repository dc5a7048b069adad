"""Question 3: what do many queues, one long queue, a crash, 10,000 queues, ten times the rows, large bodies cost?"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.decoder import FIVE, read_all
from benchmarks.fresh import counted_bytes, in_fresh_process
from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import interleaved
from benchmarks.report import Finding, Section
from storage_core import open_store
from storage_core.store import ScanPartition, ScanRequest

METHOD = (
    "Without Spark, page cache warm. Reads are of the five columns with CRC. Recovery, planning and memory are "
    "measured in fresh processes, medians of their runs; memory is what the peak of a process that only reads the "
    "planned partitions lies above its size before."
)
REQUEST = ScanRequest(columns=FIVE)
MEGABYTE = 1e6


def shape(folder: Path, scale: float, rounds: int) -> Section:
    """Measures all shapes, one store or pair of stores at a time."""
    section = Section("Shapes of stores", METHOD)
    for question in (_many_queues, _one_long_queue, _after_a_crash, _ten_thousand_queues, _ten_times, _memory):
        question(folder, scale, rounds, section)
    return section


@contextmanager
def _store(folder: Path, name: str, made: StoreShape) -> Iterator[str]:
    path = make_store(str(folder / name), made)
    os.sync()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _plan(path: str, request: ScanRequest = REQUEST) -> list[ScanPartition]:
    return open_store(path).snapshot().plan(request)


def _reader(path: str) -> Callable[[], int]:
    return lambda: read_all(_plan(path))


def _many_queues(folder: Path, scale: float, rounds: int, section: Section) -> None:
    many, one = (StoreShape(2_000_000, 98, queues).scaled(scale) for queues in (64, 1))
    with _store(folder, "many", many) as many_path, _store(folder, "one", one) as one_path:
        found = interleaved({"many": _reader(many_path), "one": _reader(one_path)}, rounds)
        section.foreign.append(found.foreign)
        read = []
        for path in (many_path, one_path):
            partitions = _plan(path)
            with counted_bytes() as counted:
                read_all(partitions)
            read.append(counted.bytes_read)
    seconds = (
        f"{found.wall_s('many'):.2f} s and {found.wall_s('one'):.2f} s; by CPU {found.cheaper('one', 'many'):.2f}×"
    )
    section.add(
        Finding("64 interleaved queues over one queue: time", found.faster("one", "many"), "×", 1.2, True, seconds)
    )
    note = f"{read[0] / MEGABYTE:.1f} and {read[1] / MEGABYTE:.1f} MB, the log has {many.log_size / MEGABYTE:.1f} MB"
    section.add(Finding("64 interleaved queues over one queue: bytes read", read[0] / read[1], "×", 1.2, True, note))


def _one_long_queue(folder: Path, scale: float, rounds: int, section: Section) -> None:
    long = StoreShape(3_000_000, 98, 1, file_size=max(int(scale * (256 << 20)), 1 << 16)).scaled(scale)
    request = ScanRequest(columns=FIVE, min_partitions=2)
    with _store(folder, "long", long) as path:
        partitions = _plan(path, request)
        with _workers(1) as alone, _workers(2) as together:
            found = interleaved(
                {
                    "one process": lambda: sum(alone.map(_rows, partitions)),
                    "two processes": lambda: sum(together.map(_rows, partitions)),
                },
                rounds,
            )
    section.foreign.append(found.foreign)
    files = -(-long.log_size // long.file_size)
    note = f"{long.message_count:,} messages, {files} log files, {-(-long.message_count // 300_000)} queue files"
    section.add(Finding("one queue: partitions", len(partitions), "", 2, note=note))
    seconds = f"{found.wall_s('two processes'):.2f} s and {found.wall_s('one process'):.2f} s"
    section.add(
        Finding("one queue: two processes over one", found.faster("two processes", "one process"), "×", note=seconds)
    )


def _workers(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, get_context("spawn"))


def _rows(partition: ScanPartition) -> int:
    return read_all([partition])


def _after_a_crash(folder: Path, scale: float, rounds: int, section: Section) -> None:
    crashed = StoreShape(4_000_000, 98, crashed=True).scaled(scale)
    with _store(folder, "crashed", crashed) as path:
        runs = [in_fresh_process("snapshot", path) for _ in range(rounds)]
    by_wall = median(run["bytes_read"] / run["wall_s"] for run in runs)
    by_cpu = median(run["bytes_read"] / run["cpu_s"] for run in runs)
    again = runs[0]["bytes_read"] / crashed.log_size
    seconds = median(run["wall_s"] for run in runs)
    note = f"{seconds:.2f} s, {again:.1f} times the log read; {by_cpu / MEGABYTE:.0f} MB per CPU-s"
    title = "recovery after a crash, queues lost, 100 B: bytes read"
    section.add(Finding(title, by_wall / MEGABYTE, "MB/s", 500, note=note))
    title = "recovery after a crash, queues lost, 100 B: log"
    section.add(Finding(title, by_wall / MEGABYTE / again, "MB/s"))


def _ten_thousand_queues(folder: Path, scale: float, rounds: int, section: Section) -> None:
    many = StoreShape(1_000_000, 98, max(int(10_000 * scale), 4)).scaled(scale)
    with _store(folder, "queues", many) as path:
        runs = [in_fresh_process("snapshot", path) for _ in range(rounds)]
    note = f"{median(run['cpu_s'] for run in runs):.2f} CPU-s, first use in a process"
    section.add(
        Finding(
            f"planning {many.queue_count:,} queues", median(run["wall_s"] for run in runs), "s", 1.0, True, note, 0.4
        )
    )


def _ten_times(folder: Path, scale: float, rounds: int, section: Section) -> None:
    small = StoreShape(1_000_000, 98).scaled(scale)
    large = small.scaled(10)
    with _store(folder, "small", small) as small_path, _store(folder, "large", large) as large_path:
        found = interleaved({"small": _reader(small_path), "large": _reader(large_path)}, rounds)
    section.foreign.append(found.foreign)
    counts = small.message_count, large.message_count
    note = f"{counts[0]:,}: {found.wall_s('small'):.2f} s, {counts[1]:,}: {found.wall_s('large'):.2f} s"
    value = found.faster("small", "large") / 10
    section.add(Finding("ten times the messages: time of one message", value, "×", 1.2, True, note))


def _memory(folder: Path, scale: float, rounds: int, section: Section) -> None:
    del rounds
    for title, made in {
        "100 B bodies, 64 queues": StoreShape(3_000_000, 98, 64),
        "10 KB bodies": StoreShape(100_000, 10_060),
        "1 MB bodies": StoreShape(1_000, 1 << 20),
        "4 MB bodies": StoreShape(250, 4 << 20),
    }.items():
        with _store(folder, "memory", made.scaled(scale)) as path:
            plan = folder / "plan.pickle"
            plan.write_bytes(pickle.dumps(open_store(path).snapshot().plan(ScanRequest())))
            grown = in_fresh_process("read", str(plan))["grown_bytes"]
        section.add(Finding(f"peak memory of a worker, {title}, all columns", grown / MEGABYTE, "MB", 200, True))
