"""What this process remembers of stores it has judged: a log is walked once, and later questions look at its end."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from storage_core.files import system
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.rocketmq.consumequeue import UNIT
from storage_core.rocketmq.listing import Listing
from storage_core.rocketmq.recovery import Rules, Verdict, judge

MOST_STORES = 64
HEAD_SIZE = 8
LARGEST_RECORD = 8 << 20


@dataclass(frozen=True)
class _Memory:
    """A verdict, the listing it was made on, and the bytes that lay at the end of what it judged then."""

    listing: Listing
    end_bytes: bytes
    verdict: Verdict


_memories: OrderedDict[tuple[str, str, Rules | None], _Memory] = OrderedDict()


def remembered_verdict(listing: Listing, rules: Rules | None) -> Verdict:
    """The verdict on a listing.

    A broker writes through a map, which moves neither size nor time of a file, so the bytes at the known end are
    looked at as well: they change with the next record.
    """
    log_folder = listing.log.files[0].path.rpartition("/")[0] if listing.log.files else ""
    key = (listing.root, log_folder, rules)
    memory = _memories.get(key)
    if memory is not None and _is_same(memory, listing):
        _memories.move_to_end(key)
        return memory.verdict
    known = memory.verdict if memory is not None and _only_grew(memory, listing) else None
    verdict = judge(listing, rules, known)
    _memories[key] = _Memory(listing, _end_bytes(listing, verdict), verdict)
    while len(_memories) > MOST_STORES:
        _memories.popitem(last=False)
    return verdict


def _is_same(memory: _Memory, listing: Listing) -> bool:
    same = memory.listing is listing or memory.listing.signature == listing.signature
    return same and memory.end_bytes == _end_bytes(listing, memory.verdict)


def _only_grew(memory: _Memory, listing: Listing) -> bool:
    """Whether a running broker has added to the log since, and nothing before its end was written to.

    Then the walk goes on at the known end. A store that no broker runs on is judged anew: its files may have been
    changed anywhere.
    """
    end, before = memory.verdict.log_end, memory.listing
    if not (listing.abort and before.abort and before.says_5x == listing.says_5x):
        return False
    full = {file for file in before.log.files if file.base_offset + before.log.file_size <= end}
    same = full <= set(listing.log.files)
    return same and listing.log.start == before.log.start and _end_bytes(listing, memory.verdict) != memory.end_bytes


def _end_bytes(listing: Listing, verdict: Verdict) -> bytes:
    """The bytes where the next record would begin, or, when the queues are trusted, where the next units would."""
    with OpenFiles() as files:
        return _next_units(listing, verdict, files) if verdict.rules is Rules.NONE else _next(listing, verdict, files)


def _next_units(listing: Listing, verdict: Verdict, files: OpenFiles) -> bytes:
    found = []
    for key, bounds in verdict.queues.items():
        queue = listing.queues.get(key)
        file = None if queue is None else queue.chain.file_at(bounds.stop * UNIT.size)
        if file is not None:
            position = bounds.stop * UNIT.size - file.base_offset
            found.append(system.pread(files.descriptor(file.path), UNIT.size, position))
    return b"".join(found)


def _next(listing: Listing, verdict: Verdict, files: OpenFiles) -> bytes:
    """The bytes where the next record would begin; all of it, for a half-written record has its size already."""
    file = listing.log.file_at(verdict.log_end)
    if file is None:
        return b""
    window = Window(listing.log, files)
    room = file.end - verdict.log_end
    head = window.load(verdict.log_end, verdict.log_end + min(HEAD_SIZE, room)).tobytes()
    size = int.from_bytes(head[:4], "big")
    if HEAD_SIZE < size <= min(room, LARGEST_RECORD):
        return window.load(verdict.log_end, verdict.log_end + size).tobytes()
    return head
