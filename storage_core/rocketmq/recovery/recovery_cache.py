"""Caches recovery verdicts: a process walks a log once, and then rereads only its end while the log stays the same.

A verdict that took long is kept for other processes too (`verdict_file`).

A path does not identify a store: a backup may have been restored under it. A verdict holds for the files from which it
was made, by device and inode, and while the bytes around the ends that it states are the same. Source of the rule:
interface.md 8.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from storage_core.files import system
from storage_core.files.open_files import OpenFiles
from storage_core.files.window import Window
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.ledger import stated_size
from storage_core.formats.rocketmq.message import BLANK
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.ledger import header_size
from storage_core.rocketmq.disk.recent import Recent
from storage_core.rocketmq.recovery import verdict_file
from storage_core.rocketmq.recovery.directory_cache import stated_topics
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.verdict import Rules, Verdict

LARGEST_RECORD = 8 << 20
UNPROVEN_BYTES = b""
"""Stands for the bytes after an end that a broker moved between the walk and the read of them: they prove nothing."""
BYTES_BEFORE = 64 << 10
WORTH_KEEPING_S = 0.2
"""How long a walk must take for its verdict to be kept for other processes."""


@dataclass(frozen=True)
class _CachedVerdict:
    """A verdict, the listing that it is about, and the bytes that were before and after the ends that it states."""

    listing: Listing
    before_end: bytes
    after_end: bytes
    verdict: Verdict


_cache: Recent[tuple[str, str, Rules | None], _CachedVerdict] = Recent()


def cached_verdict(listing: Listing, rules: Rules | None) -> Verdict:
    """The recovery verdict on a listing.

    A broker writes through a memory map, which changes neither size nor time of a file, so the bytes at the known end
    are read as well: they change with the next record. If a broker may be running and those bytes are not zeros, the
    end is then found again, because a record that arrived before they were read would never change them.
    """
    log_folder = listing.log.files[0].path.rpartition("/")[0] if listing.log.files else ""
    key = (listing.root, log_folder, rules)
    cached = _cache.get(key)
    known = None
    if cached is not None and _has_same_types(cached.verdict, listing):
        before_end, after_end = _around_end(listing, cached.verdict)
        if before_end == cached.before_end and _has_same_files(cached, listing) and after_end == cached.after_end:
            return _cache.keep(key, cached).verdict
        if before_end == cached.before_end and after_end != cached.after_end and _only_grew(cached, listing):
            known = cached.verdict
    elif cached is None and (saved := _load_saved(listing, rules)) is not None:
        return _cache.keep(key, saved).verdict
    began = time.monotonic()
    verdict = recover(listing, rules, known)
    found = _CachedVerdict(listing, *_around_end(listing, verdict), verdict)
    if listing.abort and any(found.after_end) and recover(listing, rules, verdict).log_end != verdict.log_end:
        return _cache.keep(key, replace(found, after_end=UNPROVEN_BYTES)).verdict
    if time.monotonic() - began > WORTH_KEEPING_S:
        digest = verdict_file.digest_of((found.before_end, found.after_end))
        verdict_file.save(listing, rules, verdict, digest)
    return _cache.keep(key, found).verdict


def _load_saved(listing: Listing, rules: Rules | None) -> _CachedVerdict | None:
    """What another process found out about the same files, if the bytes around the end are also the same."""
    saved = verdict_file.load(listing, rules)
    if saved is None or not _has_same_types(saved.verdict, listing):
        return None
    before_end, after_end = _around_end(listing, saved.verdict)
    if verdict_file.digest_of((before_end, after_end)) != saved.around_end:
        return None
    return _CachedVerdict(listing, before_end, after_end, saved.verdict)


def _has_same_files(cached: _CachedVerdict, listing: Listing) -> bool:
    return cached.listing is listing or cached.listing.signature == listing.signature


def _has_same_types(verdict: Verdict, listing: Listing) -> bool:
    """Whether topics.json still states the same batch topics, or recovery did not depend on them."""
    stated = verdict.stated_batch_topics
    return stated is None or stated == stated_topics(listing.root).batched


def _only_grew(cached: _CachedVerdict, listing: Listing) -> bool:
    """Whether a running broker has since only added to the same log files, or begun new ones.

    Then the walk resumes at the known end. A store on which no broker runs is recovered from scratch: its files may
    have been changed anywhere.
    """
    end, before = cached.verdict.log_end, cached.listing
    if not (listing.abort and before.abort and before.has_5x_marks == listing.has_5x_marks):
        return False
    full = {file for file in before.log.files if file.base_offset + before.log.file_size <= end}
    if not full <= set(listing.log.files) or listing.log.start != before.log.start:
        return False
    last, last_before = listing.log.file_at(end - 1), before.log.file_at(end - 1)
    return last is not None and last_before is not None and last.stamp.identity == last_before.stamp.identity


def _around_end(listing: Listing, verdict: Verdict) -> tuple[bytes, bytes]:
    """The bytes before the log end, and those where the next record would begin, or, when the queues are trusted,
    where the next entries would.
    """
    with OpenFiles() as files:
        before_end = _before(listing, verdict.log_end, files)
        if verdict.rules is Rules.NONE:
            return before_end, _next_entries(listing, verdict, files)
        return before_end, _next_record(listing, verdict, files)


def _before(listing: Listing, end: int, files: OpenFiles) -> bytes:
    file = listing.log.file_at(end - 1)
    if file is None:
        return b""
    start = max(file.base_offset, end - BYTES_BEFORE)
    return system.pread(files.descriptor(file.path), end - start, start - file.base_offset)


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
    """All of the next record if its size is there, as it is for a half-written record; otherwise its first bytes."""
    file = listing.log.file_at(verdict.log_end)
    if file is None:
        return b""
    window = Window(listing.log, files)
    left = file.end - verdict.log_end
    head = window.load(verdict.log_end, verdict.log_end + min(BLANK.size, left)).tobytes()
    size = stated_size(head) if header_size(listing.log, file) else int.from_bytes(head[:4], "big")
    if BLANK.size < size <= min(left, LARGEST_RECORD):
        return window.load(verdict.log_end, verdict.log_end + size).tobytes()
    return head
