"""What is left of a read when its request asks for keys, ids or addresses: some units, and parts of queues to scan.

Chains are walked by `lookup`, units found by `unit_search`; what was proven of a store's index files is remembered.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.formats.rocketmq.indexfile import HEADER, Geometry
from storage_core.formats.rocketmq.paths import LIGHT_QUEUE_PREFIX
from storage_core.rocketmq.index_files import Index, index_paths, open_index
from storage_core.rocketmq.lookup import Lookup, hashes_to_find, look_up
from storage_core.rocketmq.narrowing import LAST_OFFSET, Terms, bounds_of, terms_of
from storage_core.rocketmq.planning import Bounds
from storage_core.rocketmq.record_reader import RecordReader
from storage_core.rocketmq.unit_search import UnitSearch, pieces
from storage_core.store import ScanRequest

_LOGGER = logging.getLogger("mqstore")
MOST_STORES = 64
MOST_TOPICS = 256

_Seen = tuple[object, ...]
_indexes: OrderedDict[str, tuple[_Seen, Index]] = OrderedDict()


@dataclass(frozen=True)
class Served:
    """The part of a store that a search may end in: its log [log_start, log_end), and all topics that it has."""

    root: str
    log: FileChain
    log_start: int
    log_end: int
    topics: Sequence[str]
    geometry: Geometry | None = None


def parts_to_read(
    request: ScanRequest, served: Served, bounds: Sequence[Bounds], files: OpenFiles
) -> tuple[list[Bounds], npt.NDArray[np.int32]] | None:
    """Parts of the selected queues that hold every message which the request's keys, ids and addresses leave, and the
    number in `bounds` of the queue of each part; None when the request asks for none of these.
    """
    low, high = bounds_of(request.predicates, "physicalOffset")
    terms = terms_of(request) if request.use_index else None
    if terms is None and (low, high) == (0, LAST_OFFSET):
        return None
    low, high = max(low, served.log_start), min(high, served.log_end)
    if terms is None:
        return pieces(bounds, [(low, high)] if low < high else [], [], files)
    records = RecordReader(served.log, files, served.log_end)
    found = find(request, served, terms, files, records)
    inside = [(max(start, low), min(stop, high)) for start, stop in found.spans]
    spans = [(start, stop) for start, stop in inside if start < stop]
    places = found.places[(found.places >= low) & (found.places < high)]
    search = UnitSearch(bounds, files, records)
    return pieces(bounds, spans, search.units_of(places), files)


def find(request: ScanRequest, served: Served, terms: Terms, files: OpenFiles, records: RecordReader) -> Lookup:
    """Records that may match, and spans of the log that must be scanned because no index covers them."""
    index = remembered_index(served, files)
    topics = _topics(request, served.topics)
    hashes = hashes_to_find(topics, terms.keys)
    found = look_up(index, hashes, served.log, files, served.log_start, served.log_end, records)
    _LOGGER.info(
        "mqstore: %d keys in %d topics: %d pages of %d index files were read; %d candidates, %d bytes left to scan",
        len(terms.keys), len(topics), found.pages, len(index.files), len(found.places),
        sum(stop - start for start, stop in found.spans),
    )  # fmt: skip
    named = [place for place in terms.places if served.log_start <= place < served.log_end]
    alone = [place for place in named if not any(start <= place < stop for start, stop in found.spans)]
    return Lookup(np.union1d(found.places, np.array(alone, np.int64)), found.spans, found.pages)


def _topics(request: ScanRequest, known: Sequence[str]) -> Sequence[str]:
    """The topics under which wanted records may be indexed: their own, which need not be that of the queue.

    All topics, unless there are very many and those asked for hold no light queue.
    """
    wanted = request.topics
    if request.assign is not None:
        wanted = tuple(dict.fromkeys(topic for topic, _ in request.assign))
    if wanted is None or len(known) <= MOST_TOPICS or any(topic.startswith(LIGHT_QUEUE_PREFIX) for topic in wanted):
        return known
    return wanted


def remembered_index(served: Served, files: OpenFiles) -> Index:
    """The proven index files of a store. A broker changes them through maps, so headers tell whether they moved."""
    paths = index_paths(served.root)
    heads = tuple((path, *_head(path)) for path in paths)
    seen = (heads, served.log_start, served.log_end)
    known = _indexes.get(served.root)
    if known is not None and known[0] == seen:
        _indexes.move_to_end(served.root)
        return known[1]
    with OpenFiles() as opened:
        index = open_index(served.root, served.log, served.log_start, served.log_end, opened, served.geometry)
    _indexes[served.root] = (seen, index)
    while len(_indexes) > MOST_STORES:
        _indexes.popitem(last=False)
    return index


def _head(path: str) -> tuple[int, int, bytes]:
    """Length, modification time and header of an index file; zeros when it is gone."""
    try:
        found = system.stat(path)
        descriptor = system.open_read(path)
    except FileNotFoundError:
        return 0, 0, b""
    try:
        return found.size, found.mtime_ns, system.pread(descriptor, HEADER.size, 0)
    finally:
        system.close(descriptor)
