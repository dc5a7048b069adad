"""The machine under test: its description, the load of other processes, and touching its memory beforehand."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from time import perf_counter

import numpy as np

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Clocks at one moment, in seconds: wall time, CPU of this process and its descendants, CPU of the machine."""

    wall: float
    own_cpu: float
    all_cpu: float


def usage() -> Usage:
    """Reads the clocks."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return Usage(perf_counter(), _tree_cpu(os.getpid()), (user + nice + system + irq + softirq + steal) / _TICK)


def _tree_cpu(root: int) -> float:
    """CPU seconds of a process, of its descendants, and of the children that these have reaped."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        spent[int(name)] = sum(map(int, fields[11:15]))
    total, left = 0, [root]
    while left:
        process = left.pop()
        total += spent.get(process, 0)
        left += children.get(process, ())
    return total / _TICK


def peak_bytes() -> int:
    """The peak resident memory of this process."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def available_bytes() -> int:
    """Memory that can be used without evicting anything."""
    with open("/proc/meminfo") as file:
        line = next(line for line in file if line.startswith("MemAvailable"))
    return int(line.split()[1]) << 10


def touch_memory(most_bytes: int) -> int:
    """Makes the host give this machine its memory now: the first touch of a page can cost forty times a later one.

    Returns the number of bytes touched: at most `most_bytes` and half of what is available.
    """
    count = min(most_bytes, available_bytes() // 2)
    np.ones(count, np.uint8)
    return count


def description() -> list[str]:
    """What a reader needs to know about the machine; no names, no paths."""
    from importlib.metadata import PackageNotFoundError, version

    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory_kb = int(file.readline().split()[1])
    cores, model = len(os.sched_getaffinity(0)), models[0] if models else platform.machine()
    versions = f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"
    for package in ("pyspark", "pyarrow", "numpy"):
        try:
            versions += f", {package} {version(package)}"
        except PackageNotFoundError:
            continue
    return [f"{cores} cores, {model}, {memory_kb / (1 << 20):.0f} GiB memory", versions]
