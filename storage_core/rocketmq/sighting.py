"""What a look into a store's folders saw, kept to be asked again: the same listing, unless something there has changed.

Listing a store is a look into every folder; asking whether it changed is a look at each name. What lies in the files is
not seen here: a broker writes through maps, which `remembered` deals with.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage_core.files import system
from storage_core.formats.rocketmq import paths
from storage_core.rocketmq.listing import Listing, list_store, with_marks

MOST_STORES = 64
SETTLED_NS = 2_000_000_000
"""How old a change must be to be told from the next one: some file systems count in steps of two seconds."""

Stamps = tuple[tuple[str, system.Stamp], ...]


@dataclass(frozen=True)
class _Sighting:
    """A listing, and the stamps that every folder and file had before it was made; none after the first look."""

    listing: Listing
    stamps: Stamps = ()


_sightings: OrderedDict[tuple[str, tuple[str, ...]], _Sighting] = OrderedDict()


def seen_store(root: str, commit_log_paths: Sequence[str] = ()) -> Listing:
    """`list_store`; the very same listing as the last time where nothing has changed since.

    Raises what `list_store` raises.
    """
    key = (root, tuple(commit_log_paths))
    known = _sightings.pop(key, None)
    if known is not None and known.stamps and system.unchanged(known.stamps):
        seen = _Sighting(with_marks(known.listing), known.stamps)
    else:
        # A process that looks once needs no stamps.
        stamps = _settled(_stamps(root, commit_log_paths)) if known is not None else ()
        seen = _Sighting(list_store(root, commit_log_paths), stamps)
    _sightings[key] = seen
    while len(_sightings) > MOST_STORES:
        _sightings.popitem(last=False)
    return seen.listing


def _settled(found: Iterator[tuple[str, system.Stamp]]) -> Stamps:
    """The stamps, or none when one of them is so young that the next change might leave it as it is."""
    newest_ns, stamps = time.time_ns() - SETTLED_NS, []
    for path, stamp in found:
        if max(stamp.mtime_ns, stamp.ctime_ns) > newest_ns:
            return ()
        stamps.append((path, stamp))
    return tuple(stamps)


def _stamps(root: str, commit_log_paths: Sequence[str]) -> Iterator[tuple[str, system.Stamp]]:
    """Every folder and name that a listing depends on, each folder before what lies in it."""
    for folder in commit_log_paths or [os.path.join(root, paths.COMMIT_LOG)]:
        yield from _below(folder, 1)
    yield from _below(os.path.join(root, paths.CONSUME_QUEUE), 3)


def _below(path: str, levels: int) -> Iterator[tuple[str, system.Stamp]]:
    yield path, system.stamp(path)
    if not levels:
        return
    try:
        names = system.names(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield from _below(os.path.join(path, name), levels - 1)
