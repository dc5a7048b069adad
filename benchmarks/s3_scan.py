"""A scan of a store on a real S3 server on this machine, S3Proxy, without any throttling: the cost of the reading.

Maven fetches the server into `.cache/s3proxy` of the checkout, once; without Maven this part is left out.
"""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.machine import peak_bytes
from benchmarks.measure import interleaved
from benchmarks.report import Finding, Section
from storage_core.files.remote import registry
from storage_core.files.remote.access import without_access
from tests.support.s3_server import S3Server, s3_server

THREADS = 8
Span = tuple[str, int, int]
Scan = Callable[..., object]


class Reads:
    """Reads of one store from a server, each under a new name that was never read; CPU seconds of this process."""

    def __init__(self, server: S3Server, path: Path) -> None:
        self._server, self._path = server, path
        self._numbers = itertools.count()
        self.cpu_s: dict[str, list[float]] = {}

    def uri(self) -> str:
        """The store under a new name, with no requests so far."""
        return f"s3://backups/{Path(self.directory()).parent.name}/store"

    def directory(self) -> str:
        """The same store on disk."""
        registry.forget_all()
        folder = self._server.folder / "backups" / str(next(self._numbers)) / "store"
        folder.mkdir(parents=True)
        for part in self._path.iterdir():
            (folder / part.name).symlink_to(part)
        return str(folder)

    def gets(self, spans: Sequence[Span]) -> None:
        """Gets the same bytes and nothing else, with eight threads."""
        uri = self.uri()
        bucket = registry.attach(uri, without_access(self._server.options)[1])
        bucket.look(uri.partition("://backups/")[2])
        found = {name: registry.found_file(f"{uri}/{name}") for name, _, _ in spans}

        def get(span: Span) -> int:
            name, start, stop = span
            each = found[name]
            if each is None:
                raise FileNotFoundError(f"{uri}/{name}")
            return len(bucket.requests.get(each, start, stop))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(get, spans))

    def timed(self, name: str, work: Callable[[], object]) -> Callable[[], None]:
        """The same work, with its CPU time recorded."""

        def run() -> None:
            before = time.process_time()
            work()
            self.cpu_s.setdefault(name, []).append(time.process_time() - before)

        return run


def s3_scan(section: Section, folder: Path, path: str, spans: Sequence[Span], scan: Scan, rounds: int) -> None:
    """Compares `scan(path, **options)` with reads of the same spans (name below the store, start, stop)."""
    if not (shutil.which("mvn") and shutil.which("java")):
        print("  the scan of a real S3 server is left out: there is no mvn or no java on the PATH", flush=True)
        return
    (folder / "buckets" / "backups").mkdir(parents=True)
    size = sum(stop - start for _, start, stop in spans)
    with s3_server(folder) as server:
        reads = Reads(server, Path(path))
        done = interleaved(
            {
                "gets": reads.timed("gets", lambda: reads.gets(spans)),
                "scan": reads.timed("scan", lambda: scan(reads.uri(), **server.options)),
                "local": reads.timed("local", lambda: scan(reads.directory())),
            },
            rounds,
        )
        local = _peak(scan, reads.directory(), {})
        remote = median(_peak(scan, reads.uri(), server.options) for _ in range(rounds))
    section.foreign.append(done.foreign)
    cost = {name: median(spent) / size * 1e9 for name, spent in reads.cpu_s.items()}
    section.add(Finding("scan of an S3 server here over eight threads that get the same bytes",
                        done.faster("scan", "gets"), "×", 0.6,
                        note=f"{size / 1e6 / done.wall_s('scan'):.0f} MB/s of "
                             f"{size / 1e6 / done.wall_s('gets'):.0f}"))  # fmt: skip
    times = size / bytes_of(spans)
    section.add(Finding("CPU of this scan", cost["scan"], "CPU-s a GB", 1.8, True,
                        f"the gets alone {cost['gets']:.2f}, from disk {cost['local']:.2f}; recovery and the scan read "
                        f"each byte {times:.1f} times: {cost['scan'] * times:.2f} a GB of the store"))  # fmt: skip
    section.add(Finding("memory of this scan over that of a local one", (remote - local) / 1e6, "MB", 160, True,
                        f"{remote / 1e6:.0f} MB, local {local / 1e6:.0f} MB"))  # fmt: skip


def bytes_of(spans: Sequence[Span]) -> int:
    """The number of bytes that spans cover, those in several spans counted once."""
    count, last, reached = 0, "", 0
    for name, start, stop in sorted(spans):
        reached = reached if name == last else 0
        count += max(stop - max(start, reached), 0)
        last, reached = name, max(reached, stop)
    return count


def _peak(scan: Scan, path: str, options: Mapping[str, str]) -> int:
    """The peak memory of a process that scans a store."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_after, (scan, path, dict(options)))


def peak_after(scan: Scan, path: str, options: Mapping[str, str]) -> int:
    """Scans, and returns the peak memory of this process."""
    scan(path, **options)
    return peak_bytes()
