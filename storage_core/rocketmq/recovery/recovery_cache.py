"""Caches recovery verdicts: a process walks a log once, and reads only its end again while it stays the same."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from storage_core.files import system
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import BLANK
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.recovery import Rules, Verdict, recover

MOST_STORES = 64
LARGEST_RECORD = 8 << 20


@dataclass(frozen=True)
class _CachedVerdict:
    """A verdict, the listing that it is about, and the bytes that lay at the ends that it states."""

    listing: Listing
    end_bytes: bytes
    verdict: Verdict


_cache: OrderedDict[tuple[str, str, Rules | None], _CachedVerdict] = OrderedDict()


def cached_verdict(listing: Listing, rules: Rules | None) -> Verdict:
    """The recovery verdict on a listing.

    A broker writes through a map, which changes neither size nor time of a file, so the bytes at the known end are
    read as well: they change with the next record.
    """
    log_folder = listing.log.files[0].path.rpartition("/")[0] if listing.log.files else ""
    key = (listing.root, log_folder, rules)
    cached = _cache.get(key)
    if cached is not None and _is_same(cached, listing):
        _cache.move_to_end(key)
        return cached.verdict
    known = cached.verdict if cached is not None and _only_grew(cached, listing) else None
    verdict = recover(listing, rules, known)
    _cache[key] = _CachedVerdict(listing, _end_bytes(listing, verdict), verdict)
    while len(_cache) > MOST_STORES:
        _cache.popitem(last=False)
    return verdict


def _is_same(cached: _CachedVerdict, listing: Listing) -> bool:
    same = cached.listing is listing or cached.listing.signature == listing.signature
    return same and cached.end_bytes == _end_bytes(listing, cached.verdict)


def _only_grew(cached: _CachedVerdict, listing: Listing) -> bool:
    """Whether a running broker has added to the log since, and nothing before its end was written to.

    Then the walk goes on at the known end. A store on which no broker runs is recovered from scratch: its files may
    have been changed anywhere.
    """
    end, before = cached.verdict.log_end, cached.listing
    if not (listing.abort and before.abort and before.says_5x == listing.says_5x):
        return False
    full = {file for file in before.log.files if file.base_offset + before.log.file_size <= end}
    same = full <= set(listing.log.files)
    return same and listing.log.start == before.log.start and _end_bytes(listing, cached.verdict) != cached.end_bytes


def _end_bytes(listing: Listing, verdict: Verdict) -> bytes:
    """The bytes where the next record would begin, or, when the queues are trusted, where the next entries would."""
    with OpenFiles() as files:
        if verdict.rules is Rules.NONE:
            return _next_entries(listing, verdict, files)
        return _next_record(listing, verdict, files)


def _next_entries(listing: Listing, verdict: Verdict, files: OpenFiles) -> bytes:
    parts = []
    for key, bounds in verdict.queues.items():
        queue = listing.queues.get(key)
        file = None if queue is None else queue.chain.file_at(bounds.stop * QUEUE_ENTRY.size)
        if file is not None:
            position = bounds.stop * QUEUE_ENTRY.size - file.base_offset
            parts.append(system.pread(files.descriptor(file.path), QUEUE_ENTRY.size, position))
    return b"".join(parts)


def _next_record(listing: Listing, verdict: Verdict, files: OpenFiles) -> bytes:
    """All of the next record where its size is there: that of a half-written record is."""
    file = listing.log.file_at(verdict.log_end)
    if file is None:
        return b""
    window = Window(listing.log, files)
    left = file.end - verdict.log_end
    head = window.load(verdict.log_end, verdict.log_end + min(BLANK.size, left)).tobytes()
    size = int.from_bytes(head[:4], "big")
    if BLANK.size < size <= min(left, LARGEST_RECORD):
        return window.load(verdict.log_end, verdict.log_end + size).tobytes()
    return head
