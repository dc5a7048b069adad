"""The remote stores that this process reads: maps paths to buckets, and descriptors to objects.

`attach` is called before anything below a URI is read; `system` calls this module for every remote path and descriptor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from storage_core.errors import OptionError
from storage_core.files.address import address_of
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import Found
from storage_core.files.remote.pieces import BLOCK_SIZE, Reader
from storage_core.files.remote.remote import YOUNG_S, Remote, pieces
from storage_core.files.remote.threads import reads
from storage_core.files.stamp import NO_STAMP, FileStat, Stamp

FIRST_DESCRIPTOR = 1 << 30
"""No process has so many files open: descriptors from here on are those of objects."""

_lock = threading.RLock()
_remotes: dict[str, tuple[Remote, int]] = {}
_opened: list[tuple[Remote, Found]] = []
_descriptors: dict[tuple[int, str, str], int] = {}


def attach(uri: str, access: Access) -> Remote:
    """The bucket of a URI, to be read with this access until `detach`.

    Raises OptionError where the bucket is being read with another access, MqStoreError without the library for it.
    """
    address = address_of(uri)
    with _lock:
        known, users = _remotes.get(address.origin, (None, 0))
        if known is None or known.access != access:
            if users:
                raise OptionError(
                    "storage.*", address.origin, "is being read with other options in this process; close that first"
                )
            known = Remote(address, access)
        _remotes[address.origin] = known, users + 1
        return known


def detach(uri: str) -> None:
    """Reverses one `attach`; listings are kept for the next one."""
    origin = address_of(uri).origin
    with _lock:
        known, users = _remotes[origin]
        _remotes[origin] = known, max(users - 1, 0)
        if users <= 1:
            known.unpin()


def forget_all() -> None:
    """Forgets every bucket: the next reads start as in a new process."""
    with _lock:
        _remotes.clear()
        _opened.clear()
        _descriptors.clear()


def _of(uri: str) -> tuple[Remote, str]:
    """The bucket of a URI in its normal form, and the path in it."""
    end = uri.find("/", uri.index("://") + 3)
    origin, path = (uri, "") if end < 0 else (uri[:end], uri[end + 1 :])
    found = _remotes.get(origin)
    if found is None:  # requested by a caller without options
        attach(origin, Access())
        detach(origin)
        found = _remotes[origin]
    if "//" in path or path.endswith("/"):
        path = "/".join(part for part in path.split("/") if part)
    return found[0], path


def look(uri: str, most_age_s: float = YOUNG_S) -> None:
    """Lists everything below a folder, unless that was done a moment ago."""
    remote, path = _of(uri)
    remote.look(path, most_age_s)


def pin(uri: str, files: Iterable[Found]) -> None:
    """Pins files of the bucket of `uri` as a plan saw them."""
    _of(uri)[0].pin(files)


def found_file(uri: str) -> Found | None:
    """The object of a URI as it was listed."""
    remote, path = _of(uri)
    return remote.file(path)


def get(uri: str, found: Found, start: int, stop: int) -> memoryview:
    """The bytes [start, stop) of an object as it was listed, requested now and not retained."""
    return _of(uri)[0].requests.get(found, start, stop)


def requests_of(uri: str) -> tuple[int, int]:
    """The numbers of requests to the bucket of a URI, and of bytes from it, since this process began to read it."""
    requests = _of(uri)[0].requests
    return requests.lists + requests.gets, requests.bytes_read


# -- called by `system`


def open_read(uri: str) -> int:
    """A descriptor of an object. Reads no bytes, but lists the object's folder if no listing covers it.

    Raises FileNotFoundError, IsADirectoryError.
    """
    remote, path = _of(uri)
    found = remote.file(path)
    if found is None:
        if remote.stat(path) is not None:
            raise IsADirectoryError(21, "Is a directory", uri)
        raise FileNotFoundError(2, "No such file or directory", uri)
    key = (id(remote), path, found.version)
    with _lock:
        known = _descriptors.get(key)
        if known is None:
            known = _descriptors[key] = FIRST_DESCRIPTOR + len(_opened)
            _opened.append((remote, found))
        return known


def pread(descriptor: int, size: int, position: int) -> bytes:
    """At most `size` bytes at `position`."""
    remote, found = _opened[descriptor - FIRST_DESCRIPTOR]
    return remote.read(found, size, position)


def pread_each(wanted: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """`pread` of each (descriptor, size, position), concurrently; those that begin in one block share a request."""
    if len(wanted) == 1:
        return [pread(*wanted[0])]
    groups: dict[tuple[int, int], list[int]] = {}
    for number, (descriptor, _, position) in enumerate(wanted):
        groups.setdefault((descriptor, position // BLOCK_SIZE), []).append(number)
    if len(groups) == 1:
        return [pread(*each) for each in wanted]
    parts: dict[int, bytes] = {}
    for found in reads().map(lambda group: [(number, pread(*wanted[number])) for number in group], groups.values()):
        parts.update(found)
    return [parts[number] for number in range(len(wanted))]


def pread_into(descriptor: int, target: memoryview, position: int) -> int:
    """Fills `target` from `position`; returns the number of bytes read."""
    remote, found = _opened[descriptor - FIRST_DESCRIPTOR]
    return remote.read_into(found, target, position)


def size_of(descriptor: int) -> int:
    """Length of an object in bytes."""
    return _opened[descriptor - FIRST_DESCRIPTOR][1].size


def will_need(earlier: object, spans: Iterable[tuple[str, int, int]]) -> object:
    """Starts reading spans that will be needed next, in this order; `earlier` is the last call's result, or None."""
    reader = earlier if isinstance(earlier, Reader) else Reader()
    by_remote: dict[str, tuple[Remote, list[tuple[str, int, int]]]] = {}
    for uri, start, stop in spans:
        remote, path = _of(uri)
        by_remote.setdefault(remote.origin, (remote, []))[1].append((path, start, stop))
    for remote, wanted in by_remote.values():
        remote.will_need(reader, wanted)
    return reader


def need_no_more(earlier: object) -> None:
    """Drops what was requested ahead and not read."""
    if isinstance(earlier, Reader):
        pieces.drop(earlier)


def stat(uri: str) -> FileStat:
    """The name, kind and stamp of a URI. Raises FileNotFoundError."""
    remote, path = _of(uri)
    found = remote.stat(path)
    if found is None:
        raise FileNotFoundError(2, "No such file or directory", uri)
    return found


def stamp(uri: str) -> Stamp:
    """The stamp of a URI; zeros if there is nothing."""
    remote, path = _of(uri)
    found = remote.stat(path)
    return NO_STAMP if found is None else found.stamp


def exists(uri: str) -> bool:
    """Whether anything has that name."""
    remote, path = _of(uri)
    return remote.stat(path) is not None


def is_folder(uri: str) -> bool:
    """Whether there is anything below it."""
    remote, path = _of(uri)
    found = remote.stat(path)
    return found is not None and found.is_directory


def entries(uri: str) -> list[FileStat]:
    """The entries of a folder. Raises FileNotFoundError, NotADirectoryError."""
    remote, path = _of(uri)
    return remote.entries(path)


def matching(pattern: str) -> list[str]:
    """The URIs that match a shell pattern, sorted."""
    remote, path = _of(pattern)
    return [f"{remote.origin}/{found}" for found in remote.matching(path)]
