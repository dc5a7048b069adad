"""Finds the parts of queues that must be read for a request that selects by keys, ids or addresses.

`key_lookup` walks index chains, `queue_search` finds queue entries, `row_filter` decides whether a message matches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.rocketmq.disk.record_reader import RecordReader
from storage_core.rocketmq.index.index_cache import cached_index
from storage_core.rocketmq.index.index_files import Index
from storage_core.rocketmq.index.key_lookup import Lookup, hashes_to_find, look_up
from storage_core.rocketmq.read.predicates import LAST_OFFSET, Terms, bounds_of, terms_of
from storage_core.rocketmq.read.queue_search import QueueSearch, pieces
from storage_core.rocketmq.read.ranges import QueueRanges
from storage_core.rocketmq.read.selection import Selection
from storage_core.rocketmq.recovery.queue_ranges import ServedQueues
from storage_core.store import ScanRequest

_LOGGER = logging.getLogger("mqstore")
MOST_TOPICS = 256


def parts_to_read(
    request: ScanRequest, served: ServedQueues, selection: Selection, files: OpenFiles
) -> QueueRanges | None:
    """Parts of the selected queues that hold every message matching the request's keys, ids and addresses; None if the
    request has none of these.
    """
    low, high = bounds_of(request.predicates, "physicalOffset")
    terms = terms_of(request) if request.use_index else None
    if terms is None and (low, high) == (0, LAST_OFFSET):
        return None
    verdict = served.verdict
    low, high = max(low, verdict.log_start), min(high, verdict.log_end)
    if terms is None:
        return pieces(selection, [(low, high)] if low < high else [], [], files)
    records = RecordReader(served.listing.log, files, verdict.log_end)
    candidates = find(request, served, terms, files, records)
    inside = [(max(start, low), min(stop, high)) for start, stop in candidates.spans]
    spans = [(start, stop) for start, stop in inside if start < stop]
    physical_offsets = candidates.physical_offsets
    physical_offsets = physical_offsets[(physical_offsets >= low) & (physical_offsets < high)]
    return pieces(selection, spans, QueueSearch(selection, files, records).entries_of(physical_offsets), files)


def find(request: ScanRequest, served: ServedQueues, terms: Terms, files: OpenFiles, records: RecordReader) -> Lookup:
    """Records that may match, and spans of the log that must be scanned because no index covers them."""
    log, log_start, log_end = served.listing.log, served.verdict.log_start, served.verdict.log_end
    topics = indexed_topics(request, served)
    hashes = hashes_to_find(topics, terms.keys)
    index = cached_index(served.listing.root, log, log_start, log_end, hashes)
    lookup = look_up(index, hashes, log, files, log_start, log_end, records)
    left = sum(stop - start for start, stop in lookup.spans)
    tell(terms, topics, lookup.pages, index, len(lookup.physical_offsets), left)
    named = [
        physical_offset
        for physical_offset in terms.physical_offsets
        if log_start <= physical_offset < log_end
        and not any(start <= physical_offset < stop for start, stop in lookup.spans)
    ]
    return Lookup(np.union1d(lookup.physical_offsets, np.array(named, np.int64)), lookup.spans, lookup.pages)


def tell(terms: Terms, topics: Sequence[str], pages: int, index: Index, candidates: int, left: int) -> None:
    """Logs at INFO what a lookup read; `left` is in bytes."""
    _LOGGER.info(
        "mqstore: %d keys in %d topics: %d pages of %d index files were read; %d candidates, %d bytes left to scan",
        len(terms.keys), len(topics), pages, len(index.files), candidates, left,
    )  # fmt: skip


def indexed_topics(request: ScanRequest, served: ServedQueues) -> Sequence[str]:
    """The topics under which requested records may be indexed: their own, which may differ from the queue's topic.

    All topics, unless there are very many and the requested ones include no light queue.
    """
    known, topics = served.topics, request.topics
    if request.assign is not None:
        topics = tuple(dict.fromkeys(topic for topic, _ in request.assign))
    if topics is None or len(known) <= MOST_TOPICS or any(topic.startswith(LIGHT_QUEUE_PREFIX) for topic in topics):
        return known
    return topics
