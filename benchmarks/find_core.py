"""Lookups without Spark: one key by the index files, warm and just opened, pages touched, views of large stores."""

from __future__ import annotations

import logging
import os
import queue
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa

from benchmarks.fresh import in_fresh_process
from benchmarks.make_index import key_of, write_index
from benchmarks.make_store import FIRST_MS, TOPICS, StoreShape, make_store, physical_offsets_of, topics_of
from benchmarks.report import Finding, Section
from storage_core import open_store
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.store import ScanRequest, Store

KEYS = 400
PAGES = re.compile(r"(\d+) pages of (\d+) index files")
FILES = 40
CHAINED = 4
"""Entries of a full chain: a broker's files have four times as many entries as slots."""


def find_core(section: Section, path: str, shape: StoreShape, folder: Path, scale: float, rounds: int) -> None:
    """Measures a store that has index files of the broker's own geometry."""
    title = f"{shape.message_count:,} messages"
    fresh = [in_fresh_process("open", path) for _ in range(rounds)]
    section.add(Finding(f"{title}: opening, recovery=none, first use in a process",
                        median(run["wall_s"] for run in fresh) * 1e3, "ms", 50, True,
                        f"{median(run['cpu_s'] for run in fresh) * 1e3:.1f} ms CPU"))  # fmt: skip
    with open_store(path) as store:
        store.queues()
        start = perf_counter()
        with open_store(path) as again:
            again.queues()
        section.add(Finding(f"{title}: opening, the log's end known", (perf_counter() - start) * 1e3, "ms", 50, True))
        _warm(section, f"{title}: one key, warm call", store, shape)
        _without_index(section, f"{title}: one key without index files", store, shape, rounds)
    with _forty_files(path, shape), open_store(path) as store:
        _warm(section, f"{title}, {FILES} index files: one key, warm call", store, shape, bounds=None)
        # A lookup searches for the key in each topic: a slot and the entries of its chain, in every file.
        most = FILES * len(TOPICS) * (1 + 2 * CHAINED)
        pages, files = _pages(store, shape)
        note = f"the worst of 20 keys; {files} files, {len(TOPICS)} topics asked"
        title = f"{title}, {FILES} index files: 4 KB pages of them read for one key"
        section.add(Finding(title, pages, "pages", most, True, note))
    _views(section, path, folder, scale)


def _warm(
    section: Section, title: str, store: Store, shape: StoreShape, bounds: tuple[float, float] | None = (1.0, 0.3)
) -> None:
    r = random.Random(1)
    walls, cpus = [], []
    for number in range(KEYS + 50):
        key = key_of(r.randrange(shape.message_count))
        wall, cpu = perf_counter(), process_time()
        (batch,) = store.find(key=key)
        if number >= 50:
            walls.append(perf_counter() - wall)
            cpus.append(process_time() - cpu)
        if batch.column("key").to_pylist() != [key]:
            raise RuntimeError(f"{key} was not found")
    must, goal = bounds or (None, None)
    note = f"{median(cpus) * 1e3:.2f} ms CPU; fastest {min(walls) * 1e3:.2f} ms; median of {KEYS} keys, all columns"
    section.add(Finding(title, median(walls) * 1e3, "ms", must, True, note, goal))


def _without_index(section: Section, title: str, store: Store, shape: StoreShape, rounds: int) -> None:
    walls, cpus = [], []
    request = ScanRequest(keys=(key_of(shape.message_count // 3),), use_index=False)
    for _ in range(rounds):
        wall, cpu = perf_counter(), process_time()
        rows = sum(batch.num_rows for part in store.snapshot().plan(request) for batch in part.read())
        walls.append(perf_counter() - wall)
        cpus.append(process_time() - cpu)
        if rows != 1:
            raise RuntimeError(f"{rows} rows were found")
    note = f"{median(cpus):.2f} CPU-s, one process"
    section.add(Finding(title, median(walls), "s", 2.5, True, note, 1.2))


@contextmanager
def _forty_files(path: str, shape: StoreShape) -> Iterator[None]:
    """The same store with its keys in forty index files."""
    index, aside = os.path.join(path, "index"), os.path.join(path, "index-aside")
    entries = -(-2 * shape.message_count // FILES) + 1
    os.rename(index, aside)
    try:
        numbers = np.arange(shape.message_count)
        topics = pa.array([topic.decode() for topic in TOPICS], pa.string())
        geometry = Geometry(max(entries // CHAINED, 1), entries)
        write_index(path, geometry, topics, topics_of(shape), physical_offsets_of(shape), FIRST_MS + 1 + numbers)
        yield
    finally:
        shutil.rmtree(index)
        os.rename(aside, index)


def _pages(store: Store, shape: StoreShape) -> tuple[int, int]:
    """The most pages that a lookup reports as read, and the number of files that it reports as searched."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = QueueHandler(lines)
    logger, level = logging.getLogger("mqstore"), logging.getLogger("mqstore").level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        r = random.Random(2)
        for _ in range(20):
            list(store.find(key=key_of(r.randrange(shape.message_count))))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    matches = [PAGES.search(lines.get().getMessage()) for _ in range(lines.qsize())]
    numbers = [(int(each[1]), int(each[2])) for each in matches if each is not None]
    return max(pages for pages, _ in numbers), max(files for _, files in numbers)


def _views(section: Section, path: str, folder: Path, scale: float) -> None:
    with open_store(path) as store:
        wall, cpu = perf_counter(), process_time()
        rows = sum(batch.num_rows for batch in store.view("index"))
        note = f"{process_time() - cpu:.2f} CPU-s"
        section.add(Finding(f"view index, {rows:,} entries", perf_counter() - wall, "s", 10, True, note))
    many = StoreShape(1_000_000, 98, max(int(10_000 * scale), 4)).scaled(scale)
    made = make_store(str(folder / "queues"), many)
    wall, cpu = perf_counter(), process_time()
    with open_store(made) as store:
        rows = sum(batch.num_rows for batch in store.view("queues"))
    note = f"{process_time() - cpu:.2f} CPU-s, with opening and finding the log's end"
    section.add(Finding(f"view queues, {rows:,} queues", perf_counter() - wall, "s", 10, True, note))
    shutil.rmtree(made)
