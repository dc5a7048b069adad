"""An in-memory bucket with faults: late, truncated, refused or missing answers, and objects that change between two
requests.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_core.files.address import SCHEMES, Address
from storage_core.files.remote import registry
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import BACK_ENDS, BackEnd, Changed, Found, Gone

NAMES_AN_ANSWER = 1000
_versions = itertools.count()


class Bucket(BackEnd):
    """Objects by path. `latency_s` passes before each answer; `stream_rate` is the bytes per second of one answer and
    `total_rate` that of all together. `fault(kind, path)` is called before each answer and may raise, wait, or change
    the bucket; `cut` is the number of bytes missing at the end of an answer.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Found] = {}
        self.content: dict[str, bytes | Path] = {}
        self.latency_s, self.stream_rate, self.total_rate = 0.0, 0.0, 0.0
        self.fault: Callable[[str, str], None] = lambda kind, path: None
        self.cut: Callable[[str], int] = lambda path: 0
        self.asked: list[tuple[str, str, int, int]] = []
        self.at_once = self.most_at_once = self.rounds = 0
        self._free_at, self._lock = 0.0, threading.Lock()

    def add(self, path: str, content: bytes | Path) -> None:
        """Puts an object, as a new version if it exists; the bytes of a file stay in the file."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        etag = hashlib.md5(f"{next(_versions)} {path}".encode()).hexdigest()
        with self._lock:
            self.content[path] = content
            self.objects[path] = Found(path, size, f'"{etag}"', time.time_ns() - 3_600_000_000_000)

    def add_folder(self, folder: Path, prefix: str) -> None:
        """Puts every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.add(f"{prefix}/{path.relative_to(folder)}", path)

    def count(self, kind: str) -> int:
        """The number of requests of a kind (`walk`, `folder`, `get`) so far."""
        return sum(request[0] == kind for request in self.asked)

    @contextmanager
    def _answer(self, kind: str, path: str, start: int = 0, stop: int = 0) -> Iterator[None]:
        with self._lock:
            self.asked.append((kind, path, start, stop))
            self.rounds += self.at_once == 0
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            begin = max(time.monotonic() + self.latency_s, self._free_at)
            if self.total_rate:
                self._free_at = begin + (stop - start) / self.total_rate
        try:
            self.fault(kind, path)
            until = begin + ((stop - start) / self.stream_rate if self.stream_rate else 0)
            if (wait := max(until, self._free_at if self.total_rate else 0) - time.monotonic()) > 0:
                time.sleep(wait)
            yield
        finally:
            with self._lock:
                self.at_once -= 1

    def walk(self, prefix: str) -> Iterator[list[Found]]:
        below = [found for path, found in sorted(self.objects.items()) if not prefix or path.startswith(prefix + "/")]
        for first in range(0, len(below), NAMES_AN_ANSWER):
            with self._answer("walk", prefix):
                yield below[first : first + NAMES_AN_ANSWER]
        if not below:
            with self._answer("walk", prefix):
                yield []

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        before = prefix + "/" if prefix else ""
        with self._answer("folder", prefix):
            inside = [found for path, found in sorted(self.objects.items()) if path.startswith(before)]
        folders = {found.path[len(before) :].split("/")[0] for found in inside if "/" in found.path[len(before) :]}
        return sorted(folders), [found for found in inside if "/" not in found.path[len(before) :]]

    def get(self, found: Found, start: int, stop: int) -> bytes:
        with self._answer("get", found.path, start, stop):
            with self._lock:
                there, content = self.objects.get(found.path), self.content[found.path]
            if there is None:
                raise Gone
            if there.etag != found.etag:
                raise Changed
            if isinstance(content, Path):
                with content.open("rb") as file:
                    file.seek(start)
                    data = file.read(stop - start)
            else:
                data = content[start:stop]
        return data[: len(data) - self.cut(found.path)]

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        with self._answer("put", path):
            if only_new and path in self.objects:
                raise Changed
            data = b"".join(source())
            assert len(data) == size
            self.add(path, data)


@contextmanager
def served(bucket: Bucket, scheme: str = "memory") -> Iterator[Bucket]:
    """Serves the bucket under every authority of `scheme://` in this process."""

    def connect(address: Address, access: Access) -> BackEnd:
        del address, access
        return bucket

    registry.forget_all()
    SCHEMES[scheme], BACK_ENDS[scheme] = scheme, connect
    try:
        yield bucket
    finally:
        del SCHEMES[scheme], BACK_ENDS[scheme]
        registry.forget_all()
