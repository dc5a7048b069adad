"""Question 2: how fast is the decoder alone, one process and no Spark, against memcpy and RocketMQ's own decoder?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.java_program import JavaProgram
from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import Rounds, interleaved
from benchmarks.report import Finding, Section
from storage_core import open_store
from storage_core.store import ScanPartition, ScanRequest

FIVE = ("topic", "queueId", "queueOffset", "key", "body")
MEMCPY_SIZE = 512 << 20
METHOD = (
    "Five columns (topic, queueId, queueOffset, key, body) through `open_store(path).snapshot().plan(…)`, read by one "
    "process without Spark, page cache warm; rates are medians. The rate in bytes is that of the log, its share is "
    "taken of one `memcpy` of 512 MB in memory that was touched before."
)
CASES = {98: "100 B", 1060: "1 KB", 10060: "10 KB"}
COUNTS = {98: 2_000_000, 1060: 1_000_000, 10060: 100_000}
SHARES = {1060: 0.15, 10060: 0.30}
MESSAGES_PER_S = 4.0
OVER_JAVA = {98: (1.5, 2.5), 1060: (1.0, 1.5)}


def decoder(folder: Path, scale: float, rounds: int) -> Section:
    """Measures all sizes; prints one line if the Java decoder cannot be built."""
    section = Section("Decoder without Spark", METHOD)
    copied = int(MEMCPY_SIZE * min(scale, 1))
    copy = _memcpy(copied)
    for body_size in CASES:
        shape = StoreShape(COUNTS[body_size], body_size).scaled(scale)
        store = make_store(str(folder / "decode"), shape)
        os.sync()
        with JavaProgram("DecodeBench", [store], folder) as java:
            if java.missing:
                print(f"  RocketMQ's own decoder is left out: {java.missing}", flush=True)
            contenders: dict[str, Callable[[], object]] = {
                "checked": _reader(store, ScanRequest(columns=FIVE)),
                "unchecked": _reader(store, ScanRequest(columns=FIVE, verify_crc=False)),
                "memcpy": copy,
            }
            if not java.missing:
                contenders["java"] = java.again
            found = interleaved(contenders, rounds, warm_ups=2)
        section.foreign.append(found.foreign)
        _tell(section, found, shape, copied)
        shutil.rmtree(store)
    return section


def _tell(section: Section, found: Rounds, shape: StoreShape, copied: int) -> None:
    size = CASES[shape.body_size]
    for name, title in (("unchecked", "verifyCrc=false"), ("checked", "verifyCrc=true")):
        per_second = shape.message_count / found.wall_s(name) / 1e6
        gate = MESSAGES_PER_S if shape.body_size == 98 else None
        cpu = found.cpu_s(name) / shape.message_count * 1e6
        section.add(Finding(f"{size}, {title}: messages", per_second, "M/s", gate, note=f"{cpu:.2f} CPU-µs a message"))
        share = found.faster(name, "memcpy") * shape.log_size / copied
        log_rate, copy_rate = shape.log_size / found.wall_s(name) / 1e9, copied / found.wall_s("memcpy") / 1e9
        rates = f"log {log_rate:.2f} GB/s, memcpy {copy_rate:.1f}"
        gate = SHARES.get(shape.body_size) if name == "unchecked" else None
        section.add(Finding(f"{size}, {title}: log bytes, of memcpy", share, "%", gate, note=rates))
    if "java" in found.runs:
        must, goal = OVER_JAVA.get(shape.body_size, (None, None))
        title = f"{size}, CRC checked: over RocketMQ's MessageDecoder"
        section.add(Finding(title, found.faster("checked", "java"), "×", must, goal=goal))
        note = f"Java {shape.message_count / found.wall_s('java') / 1e6:.2f} M/s, all fields, no CRC"
        section.add(
            Finding(f"{size}: over RocketMQ's MessageDecoder", found.faster("unchecked", "java"), "×", note=note)
        )


def _memcpy(size: int) -> Callable[[], object]:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return lambda: np.copyto(target, source)


def _reader(path: str, request: ScanRequest) -> Callable[[], int]:
    return lambda: read_all(open_store(path).snapshot().plan(request))


def read_all(partitions: list[ScanPartition]) -> int:
    """Reads every batch and keeps none; returns the number of rows."""
    return sum(batch.num_rows for partition in partitions for batch in partition.read())
