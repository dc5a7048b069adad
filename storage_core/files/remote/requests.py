"""Requests to a back end: counts them, retries where that may help, and reports failures in one line.

What the server's answers mean for a reader of a store is decided here; how it answers, in the back ends.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage_core.errors import StorageError, StoreChangedError, StoreNotFoundError
from storage_core.files.remote.back_end import BackEnd, Changed, Found, Gone, Refused, Unavailable

Answer = TypeVar("Answer")
ATTEMPTS = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0


class Requests:
    """Makes the requests to one back end, and counts them. Thread-safe."""

    def __init__(self, back_end: BackEnd, origin: str) -> None:
        self._back_end, self._origin = back_end, origin
        self._lock = threading.Lock()
        self.lists = self.gets = self.puts = self.retries = self.bytes_read = 0

    def walk(self, prefix: str) -> list[Found]:
        """Everything below a folder; empty if there is nothing."""

        def request() -> list[Found]:
            found: list[Found] = []
            for answer in self._back_end.walk(prefix):
                self._count(lists=1)
                found += answer
            if not found:
                self._count(lists=1)
            return found

        return self._listed(request, prefix)

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """Folders and objects directly in a folder; empty if there are none."""
        self._count(lists=1)
        return self._listed(lambda: self._back_end.folder(prefix), prefix)

    def _listed(self, request: Callable[[], Answer], prefix: str) -> Answer:
        what = f"{self._origin}/{prefix}"
        try:
            return self._with_retries(request, f"{what}: listing it")
        except Gone:
            raise StoreNotFoundError(f"{what}: there is no such bucket or folder; check the address") from None

    def get(self, found: Found, start: int, stop: int) -> memoryview:
        """The bytes [start, stop), which must be inside the object. Raises StoreChangedError, StorageError."""

        def request() -> memoryview:
            self._count(gets=1)
            data = memoryview(self._back_end.get(found, start, stop))
            if len(data) != stop - start:
                raise Unavailable(f"{len(data)} bytes came instead of {stop - start}")
            return data

        where = f"{self._origin}/{found.path}"
        try:
            data = self._with_retries(request, f"{where}: bytes {start} to {stop}")
        except Gone:
            raise StoreChangedError(f"{where}: the object was deleted {WHILE_READ}") from None
        except Changed:
            raise StoreChangedError(f"{where}: the object was replaced {WHILE_READ}") from None
        self._count(bytes_read=len(data))
        return data

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool = False) -> None:
        """Writes an object, whole or not at all; `source` is called again for each attempt.

        Raises FileExistsError if `only_new` is set and the object exists, StorageError.
        """

        def request() -> None:
            self._count(puts=1)
            self._back_end.put(path, source, size, only_new)

        where = f"{self._origin}/{path}"
        try:
            self._with_retries(request, f"{where}: writing it")
        except Gone:
            raise StoreNotFoundError(f"{where}: there is no such bucket; check the address") from None
        except Changed:
            raise FileExistsError(17, "File exists", where) from None

    def _with_retries(self, request: Callable[[], Answer], what: str) -> Answer:
        for attempt in range(ATTEMPTS):
            try:
                return request()
            except Refused as error:
                raise StorageError(f"{what}: {error}") from None
            except Unavailable as error:
                if attempt == ATTEMPTS - 1:
                    raise StorageError(f"{what}: {error}, {ATTEMPTS} times; {TRY_LATER}") from None
            self._count(retries=1)
            pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
            time.sleep(pause * random.uniform(0.5, 1.0))
        raise StorageError(f"{what}: not asked")

    def _count(self, lists: int = 0, gets: int = 0, puts: int = 0, retries: int = 0, bytes_read: int = 0) -> None:
        with self._lock:
            self.lists += lists
            self.gets += gets
            self.puts += puts
            self.retries += retries
            self.bytes_read += bytes_read


WHILE_READ = "while the store was read; read again, or a copy that nobody writes to"
TRY_LATER = "check the network and the endpoint, or try later"
