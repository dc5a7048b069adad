"""What a library must do to read a remote store, and the ways in which that may fail.

`BACK_ENDS` maps each scheme to its library; tests add their own.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from storage_core.files.address import Address
from storage_core.files.remote.access import Access


class Found(NamedTuple):
    """An object as a listing shows it: its path below the authority, length, ETag, and time of the last change."""

    path: str
    size: int
    etag: str
    modified_ns: int

    @property
    def version(self) -> str:
        """What differs between two versions of the object: the ETag, or without one the length and the time."""
        return self.etag or f"{self.size} {self.modified_ns}"


class Gone(Exception):  # noqa: N818 (an answer of the other side, not an error of ours)
    """There is no such object, bucket or container."""


class Changed(Exception):  # noqa: N818
    """The object's ETag or length is not the expected one."""


class Refused(Exception):  # noqa: N818
    """The server does not allow it, or cannot do it: a retry changes nothing. The text contains no secret."""


class Unavailable(Exception):  # noqa: N818
    """No answer, a broken one, or one that asks to try later: a retry may help. The text contains no secret."""


class BackEnd(ABC):
    """One bucket, container or name node. Paths have no slash at either end; methods are called from many threads."""

    @abstractmethod
    def walk(self, prefix: str) -> Iterator[list[Found]]:
        """Everything below a folder, at any depth: one list per answer of the server, of at most 1,000 names."""

    @abstractmethod
    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """The folders and the objects directly in a folder; folders by their last name."""

    @abstractmethod
    def get(self, found: Found, start: int, stop: int) -> bytes | memoryview:
        """The bytes [start, stop) of an object. Raises Changed if it is no longer the one found."""

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        """Writes an object, whole or not at all. Raises Changed if `only_new` is set and the object exists."""
        raise Refused(f"{type(self).__name__} writes nothing")


BACK_ENDS: dict[str, str | Callable[[Address, Access], BackEnd]] = {
    "s3": "storage_core.files.remote.objects",
    "gs": "storage_core.files.remote.objects",
    "abfs": "storage_core.files.remote.objects",
    "az": "storage_core.files.remote.objects",
    "hdfs": "storage_core.files.remote.hdfs",
    "viewfs": "storage_core.files.remote.hdfs",
}
"""Scheme → the module whose `connect(address, access)` creates its back end, or such a function."""


def connect(address: Address, access: Access) -> BackEnd:
    """A back end for the address's authority; loads the library that it needs. Raises MqStoreError without it."""
    found = BACK_ENDS[address.scheme]
    made = importlib.import_module(found).connect if isinstance(found, str) else found
    back_end: BackEnd = made(address, access)
    return back_end
