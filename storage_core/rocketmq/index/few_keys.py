"""Looks up the records of a few keys, chain by chain and record by record, if nothing has to be scanned.

Returns nothing if an index file is wrong or missing, or a record is not plain: `key_lookup` is needed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.indexfile import key_hash
from storage_core.rocketmq.disk.plain_record import PlainRecord, plain_record
from storage_core.rocketmq.index.index_files import Index
from storage_core.rocketmq.index.key_lookup import FEW_CHAINS, follow

MOST_RECORDS = 16


@dataclass(frozen=True)
class FewRecords:
    """Valid records that may have one of the keys, in log order, and the number of index file pages read."""

    records: Sequence[PlainRecord]
    pages: int


def few_records(
    index: Index,
    topics: Sequence[str],
    keys: Sequence[str],
    log: FileChain,
    log_start: int,
    log_end: int,
    files: OpenFiles,
) -> FewRecords | None:
    """The valid records that have one of a few keys of a few topics, as `key_lookup.look_up` finds them.

    None if that is needed: there are many, part of the log is in no index, or something is not as it should be.
    """
    chains = len(topics) * len(keys) * len(index.files)
    if index.left != () or not 0 < chains <= FEW_CHAINS:
        return None
    hashes = list(dict.fromkeys(key_hash(topic, key) for topic in topics for key in keys))
    candidates, pages = _candidates(index, hashes, files)
    if candidates is None or len(candidates) > MOST_RECORDS:
        return None
    found = []
    for physical_offset, led_there in sorted(candidates.items()):
        if physical_offset < log_start:
            continue
        record = plain_record(log, files, physical_offset, log_end)
        if record is None or not led_there <= {key_hash(record.topic, key) for key in record.index_keys()}:
            return None
        found.append(record)
    return FewRecords(found, pages)


def _candidates(index: Index, hashes: Sequence[int], files: OpenFiles) -> tuple[dict[int, set[int]] | None, int]:
    """Addresses that the index files and their edges name, each with the hashes that led there, or None if a chain
    cannot be valid; and the number of pages that were read.
    """
    candidates: dict[int, set[int]] = {}
    pages = 0
    for file in index.files:
        descriptor, touched = files.descriptor(file.path), set[int]()
        for wanted in hashes:
            hits = follow(file, descriptor, wanted, touched)
            if hits is None:
                return None, 0
            for physical_offset in hits:
                candidates.setdefault(physical_offset, set()).add(wanted)
        pages += len(touched)
    for wanted in hashes:
        for physical_offset in index.edges.get(wanted, ()):
            candidates.setdefault(physical_offset, set())
    return candidates, pages
