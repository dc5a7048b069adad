"""Caches the listing of a store's directory, and what topics.json states, until the stat of a file or folder changes.

Listing a store opens every folder; checking the cache takes one stat per name. Changes of file content are not seen
here: a broker writes through memory maps, which `recovery_cache` deals with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from storage_core.files import system
from storage_core.files.small_file import names_in
from storage_core.files.stamp import Stamp
from storage_core.formats.rocketmq import paths
from storage_core.rocketmq.disk.config_files import batch_topics, compacted_topics
from storage_core.rocketmq.disk.directory import MARKS, Listing, list_store, log_folders, with_checkpoint
from storage_core.rocketmq.disk.recent import Recent

SETTLED_NS = 2_000_000_000
"""How old a change must be to be distinguished from the next one: some file systems count in steps of two seconds."""

Stamps = tuple[tuple[str, Stamp], ...]


@dataclass(frozen=True)
class _CachedListing:
    """A listing, and the stamps of every folder and file from before it was made; none for the first listing."""

    listing: Listing
    stamps: Stamps = ()


@dataclass(frozen=True)
class StatedTopics:
    """The topics of topics.json that a 5.x broker keeps in batch queues, and those that it compacts."""

    batched: frozenset[str]
    compacted: frozenset[str]


_cache: Recent[tuple[str, tuple[str, ...]], _CachedListing] = Recent()
_stated: Recent[str, tuple[Stamps, StatedTopics]] = Recent()


def cached_listing(root: str, commit_log_paths: Sequence[str] = ()) -> Listing:
    """`list_store`; returns the same listing object as last time if nothing has changed since.

    Raises what `list_store` raises.
    """
    key = (root, tuple(commit_log_paths))
    known = _cache.pop(key, None)
    if known is not None and known.stamps and system.unchanged(known.stamps):
        fresh = _CachedListing(with_checkpoint(known.listing), known.stamps)
    else:
        # A process that lists a store once needs no stamps.
        stamps = _settled(_stamps(root, commit_log_paths)) if known is not None else ()
        fresh = _CachedListing(list_store(root, commit_log_paths), stamps)
    return _cache.keep(key, fresh).listing


def stated_topics(root: str) -> StatedTopics:
    """The types of topics; topics.json is not read again while it and its `.bak` have the same stamps."""
    known = _stated.get(root)
    if known is None or not known[0] or not system.unchanged(known[0]):
        path = os.path.join(root, paths.CONFIG, "topics.json")
        stamps = [(each, system.stamp(each)) for each in (path, f"{path}.bak")]
        known = _settled(stamps), StatedTopics(batch_topics(root), compacted_topics(root))
    return _stated.keep(root, known)[1]


def is_settled(stamp: Stamp) -> bool:
    """Whether a stamp is so old that the next change is sure to alter it."""
    return max(stamp.mtime_ns, stamp.ctime_ns) <= time.time_ns() - SETTLED_NS


def _settled(stamps: Iterable[tuple[str, Stamp]]) -> Stamps:
    """The stamps, or none if one of them is so recent that the next change might not alter it."""
    newest_ns, settled = time.time_ns() - SETTLED_NS, []
    for path, stamp in stamps:
        if max(stamp.mtime_ns, stamp.ctime_ns) > newest_ns:
            return ()
        settled.append((path, stamp))
    return tuple(settled)


def _stamps(root: str, commit_log_paths: Sequence[str]) -> Iterator[tuple[str, Stamp]]:
    """Every folder and name that a listing depends on, each folder before its content."""
    yield from _below(root, 0)
    for folder in log_folders(root, commit_log_paths):
        yield from _below(folder, 1)
    for folder in (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE):
        yield from _below(os.path.join(root, folder), 3)
    for name in MARKS:
        yield from _below(os.path.join(root, name), 0)


def _below(path: str, levels: int) -> Iterator[tuple[str, Stamp]]:
    yield path, system.stamp(path)
    if not levels:
        return
    for name in names_in(path):
        yield from _below(os.path.join(path, name), levels - 1)
