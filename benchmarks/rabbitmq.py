"""Question 6: how close does a scan of RabbitMQ's queues come to the ceiling, and how fast is the paging queue?

Scans are compared as in `scan`.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fresh import in_fresh_process
from benchmarks.make_node_queues import make_classic, make_quorum, make_stream
from benchmarks.measure import Run, interleaved, timed
from benchmarks.report import Finding, Section
from benchmarks.scan import ROOT, noop, session, write_peers
from benchmarks.write import compare_writes, tell_writes
from storage_core import open_store
from storage_core.store import ScanRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from storage_core.rabbitmq.queue.queue import Queue

METHOD = (
    'Four queues. `format("mqstore")` to Spark\'s noop sink against a Python data source that yields ready batches'
    " of the same rows and sizes, and uncompressed Parquet, as in the scan of RocketMQ's stores. Writes: rows of "
    "Parquet into a new store, against a source that drops its batches. The paging "
    "queue, without Spark: batches of 100 persistent messages of 200 B; fetching includes the bodies and the "
    "acknowledgement. Ratios are medians of the ratios within a round. A stream and a quorum queue are one "
    "message of a real node, repeated, each under its own number; classic queues are 256 messages of a real node as "
    "clients send them, or as it keeps what has died, repeated. The real backing queue is asked by `make test-"
    "real`."
)
FIVE = ("queue", "sequenceId", "messageId", "routingKeys", "body")
SHAPES = {"200 B, embedded in the index": (1_000_000, 200), "5 KB, in the message store": (100_000, 5_000)}
OF_CEILING = {"five columns": (0.60, 0.75), "all columns": (0.65, 0.80)}
CHUNK = 100_000
FILES = 8
"""The number of Parquet files from which Spark takes the rows of a write."""
QUEUES = np.array(["orders", "ship", "refund", "payment"])
BATCH, BODY_SIZE, MESSAGES = 100, 200, 200_000
NODE_COUNT, NODE_BODY_SIZE = 1_000_000, 100
NODE_FIVE = {
    "stream": ("queue", "streamOffset", "messageId", "routingKeys", "body"),
    "quorum queue": ("queue", "raftIndex", "messageId", "routingKeys", "body"),
}
STREAM_OF_CEILING = 0.40, 0.60
MUST_PER_CPU_S = {"stream": None, "quorum queue": 150_000}
"""Messages per CPU second of one process."""
CLASSIC_COUNT = 400_000
CLASSIC_QUEUES = {
    ("v43_usual_clean", "plain"): "4.3, Celery's tasks", ("v43_usual_clean", "also"): "4.3, AMQP 1.0",
    ("v43_usual_clean", "prio"): "4.3, MQTT", ("v310_usual_clean", "plain"): "3.10, dead letters",
}  # fmt: skip
"""Fixture and queue → its release, and what is in the queue."""


def rabbitmq(folder: Path, scale: float, rounds: int) -> Section:
    """Measures the scans in one Spark session, then the queue."""
    section = Section("RabbitMQ", METHOD)
    with session(folder) as spark:
        for name, (count, size) in SHAPES.items():
            count = max(int(count * scale), 100)
            store = make_rabbitmq_store(str(folder / f"rabbitmq-{size}"), count, size)
            os.sync()
            for title, columns in (("five columns", FIVE), ("all columns", None)):
                _compare(spark, folder, store, count, columns, OF_CEILING[title], f"{name}, {title}", rounds, section)
            shutil.rmtree(store)
            _compare_writes(spark, folder, count, size, f"write, {name}", rounds, section)
        for kind, make in (("stream", make_stream), ("quorum queue", make_quorum)):
            count = max(int(NODE_COUNT * scale), 100)
            store = make(folder / kind.replace(" ", "-"), count, NODE_BODY_SIZE)
            os.sync()
            bounds = STREAM_OF_CEILING if kind == "stream" else None
            _compare(spark, folder, store, count, NODE_FIVE[kind], bounds, f"{kind}, 100 B, five columns", rounds,
                     section)  # fmt: skip
            _one_process(store, count, NODE_FIVE[kind], f"{kind}, 100 B", rounds, section, MUST_PER_CPU_S[kind])
    for (snapshot, queue), sent in CLASSIC_QUEUES.items():
        store, count = make_classic(folder / snapshot / queue, snapshot, queue, int(CLASSIC_COUNT * scale))
        for title, columns in (("five columns", FIVE), ("all columns", ())):
            _one_process(store, count, columns, f"classic queue of {sent}, {title}", rounds, section)
        plan = folder / "plan.pickle"
        plan.write_bytes(pickle.dumps(open_store(store).snapshot().plan(ScanRequest())))
        grown = in_fresh_process("read", str(plan))["grown_bytes"]
        section.add(Finding(f"peak memory of a worker, {sent}, all columns", grown / 1e6, "MB", 200, True))
    paging_queue(folder, scale, rounds, section)
    return section


def make_rabbitmq_store(path: str, count: int, body_size: int) -> str:
    """Writes a store of persistent messages in four queues. Returns `path`."""
    with open_store(path, "rabbitmq") as store:
        for first in range(0, count, CHUNK):
            store.append(_rows(np.arange(first, min(first + CHUNK, count)), body_size))
    return path


def _compare_writes(
    spark: SparkSession, folder: Path, count: int, size: int, title: str, rounds: int, section: Section
) -> None:
    """Writes a new store each time: a job in a cleanly stopped store would rewrite what the store has recorded."""
    import pyarrow.parquet as pq

    rows = folder / f"rows-{size}"
    rows.mkdir()
    for number, chunk in enumerate(np.array_split(np.arange(count), FILES)):
        pq.write_table(_rows(chunk, size), rows / f"{number}.parquet", compression="NONE", use_dictionary=False)
    frame = partial(spark.read.parquet, str(rows))
    tell_writes(section, compare_writes(frame, folder, rounds, True, engine="rabbitmq"), title, count)
    shutil.rmtree(rows)


def _rows(numbers: np.ndarray, body_size: int) -> pa.Table:
    import pyarrow as pa

    bodies = np.random.default_rng(int(numbers[0])).integers(0, 256, len(numbers) * body_size, np.uint8)
    offsets = pa.py_buffer((np.arange(len(numbers) + 1) * body_size).astype(np.int32))
    return pa.table(
        {
            "queue": QUEUES[numbers % len(QUEUES)],
            "body": pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets, pa.py_buffer(bodies)]),
            "messageId": np.char.add("message-", numbers.astype(str)),
            "contentType": pa.repeat("application/octet-stream", len(numbers)),
        }
    )


def _compare(
    spark: SparkSession,
    folder: Path,
    store: str,
    count: int,
    columns: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    title: str,
    rounds: int,
    section: Section,
) -> None:
    # Workers cache ready batches by path, so every case has its own path.
    folder = folder / title.replace(" ", "-").replace(",", "")
    folder.mkdir()
    write_peers(folder, store, columns)
    ours = {} if columns is None else {"columns": ",".join(columns)}
    contenders = {
        "mqstore": noop(lambda: spark.read.format("mqstore").options(**ours).load(store)),
        "ceiling": noop(lambda: spark.read.format("ready").load(str(folder / "ready"))),
        "Parquet": noop(lambda: spark.read.parquet(str(folder / "parquet"))),
    }
    found = interleaved(contenders, rounds, warm_ups=2)
    section.foreign.append(found.foreign)
    speeds = " and ".join(f"{name} {count / found.wall_s(name) / 1e6:.2f} M rows/s" for name in ("mqstore", "ceiling"))
    note = f"{speeds}; by CPU time {found.cheaper('mqstore', 'ceiling') * 100:.0f} %"
    must, goal = bounds or (None, None)
    section.add(
        Finding(f"{title}: of the ceiling", found.faster("mqstore", "ceiling"), "%", must, note=note, goal=goal)
    )
    section.add(Finding(f"{title}: over Parquet", found.faster("mqstore", "Parquet"), "×"))
    shutil.rmtree(folder)


def _one_process(
    store: str, count: int, columns: tuple[str, ...], title: str, rounds: int, section: Section,
    must: float | None = None,
) -> None:  # fmt: skip
    """Messages per CPU second, and how much more memory the reading process needs than an idle one."""
    runs, peaks = [], []
    for number in range(rounds + 1):
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.node_queue_reader", store, ",".join(columns)],
            check=True, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        rows, cpu_s, peak = run.stdout.split()
        if int(rows) != count:
            raise RuntimeError(f"{rows} rows of {count} were read of the {title}")
        if number:
            runs.append(float(cpu_s))
            peaks.append(float(peak))
    note = f"{median(peaks) / 1e6:,.0f} MB above a process that has imported everything"
    section.add(Finding(f"{title}, one process: messages per CPU second", count / median(runs), "/s", must, note=note))


def paging_queue(folder: Path, scale: float, rounds: int, section: Section) -> None:
    """Messages per second of publishing, and of fetching and acknowledging."""
    from storage_core.rabbitmq.queue.queue import Queue

    batches = max(int(MESSAGES * scale) // BATCH, 1)
    runs: dict[str, list[Run]] = {"publish": [], "fetch and acknowledge": []}
    for number in range(rounds + 1):
        path = folder / f"queue-{number}"
        with Queue(str(path), "q") as queue:
            published = timed(lambda queue=queue: _publish(queue, batches))
            fetched = timed(lambda queue=queue: _fetch(queue, batches))
        shutil.rmtree(path)
        if number:  # the first round warms the interpreter up
            runs["publish"].append(published)
            runs["fetch and acknowledge"].append(fetched)
    for name, found in runs.items():
        by_clock, by_cpu = (
            batches * BATCH / max(median(times), 1e-9)
            for times in ([r.wall_s for r in found], [r.cpu_s for r in found])
        )
        note = f"{by_cpu:,.0f} per CPU second"
        section.add(Finding(f"paging queue, batches of {BATCH}: {name}", by_clock, "/s", 200_000, note=note))
        section.foreign.append(median(run.foreign for run in found))


def _publish(queue: Queue, batches: int) -> None:
    bodies = [b"x" * BODY_SIZE] * BATCH
    for _ in range(batches):
        queue.publish_many(bodies)


def _fetch(queue: Queue, batches: int) -> None:
    for _ in range(batches):
        fetched = queue.fetch_many(BATCH)
        fetched.bodies()
        queue.ack(fetched)
