"""Simulates a broker's start-up recovery: what it would serve after opening this directory. Read-only.

The result is a `Verdict`. Applying it before a write belongs to `truncate` and `backfill`. Source of the rules:
rocketmq.md 2.11, 3.4, 3.5, 5.4, 5.5 and interface.md 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from storage_core.files import system
from storage_core.files.ahead import side_by_side
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.message import BLANK, MAGIC_V1, MAGIC_V2
from storage_core.formats.rocketmq.record_walk import Stop, is_guided, walking
from storage_core.rocketmq.disk.commit_log import Checks, FileWalk, RecordRun
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.disk.ledger import LedgerChain, first_record_offset, header_size
from storage_core.rocketmq.disk.record_reader import head_at
from storage_core.rocketmq.recovery.batch_queues import BatchDispatcher
from storage_core.rocketmq.recovery.dispatch import Dispatcher, QueueTail
from storage_core.rocketmq.recovery.dispatch_walk import DispatchWalk
from storage_core.rocketmq.recovery.ledger import LedgerEnd, ledger_end
from storage_core.rocketmq.recovery.queue_scan import (
    NOTHING_SCANNED,
    QueueState,
    ScannedEntries,
    StaleEntries,
    scanned_queues,
)
from storage_core.rocketmq.recovery.verdict import DEFAULT_ENTRIES_PER_FILE, QueueVerdict, Replay, Rules, Verdict
from storage_core.store import QueueKey

LOG_FILES_SCANNED = 3
MOST_V1_TOPIC_CHARS = 127
REPLAY_SIZE = 64 << 20
MOST_REPLAYS = 4_096
MOST_CACHED_ADDRESSES = 2_000_000
"""Up to this many entries, a verdict keeps their addresses for as long as it is kept itself."""
MOST_TAILS = 2_000_000
"""A replay stores the tail of each queue: with many queues, a long log is cut into fewer, longer replays."""


@dataclass
class _Simulation:
    """One recovery in progress. `skips`: the dispatcher has skipped records since the last replay."""

    listing: Listing
    files: OpenFiles
    rules: Rules
    resume: int | None = None
    states: dict[QueueKey, QueueState] = field(default_factory=dict)
    log_end: int = 0
    reason: Stop = Stop.END
    first_cut: int = -1
    replays: list[Replay] = field(default_factory=list)
    skips: bool = False
    seen: ScannedEntries = field(default_factory=ScannedEntries)

    def __post_init__(self) -> None:
        self.batches = BatchDispatcher(self.listing, self.files, self.rules)


def recover(listing: Listing, rules: Rules | None = None, known: Verdict | None = None) -> Verdict:
    """The recovery verdict on a store, by the rules of 4.9.3, of 5.3.3, or of the version that the directory indicates.

    Streams the part of the log that the broker would scan, in one window of memory; with a `known` verdict that still
    holds, only the part after its end.
    """
    with OpenFiles() as files:
        run = _Simulation(listing, files, rules or chosen_rules(listing, files))
        if run.rules is Rules.NONE:
            return _trusting(run)
        states = scanned_queues(list(listing.queues.values()), files, listing.root, run.seen)
        run.states.update(zip(listing.queues, states, strict=True))
        run.resume = _resume_at(run, known)
        overall = max([run.batches.last_physical_offset, *(state.tail.reach for state in run.states.values())])
        if not listing.log.files:
            return Verdict(run.rules, 0, 0, {key: QueueVerdict(0, 0) for key in listing.queues})
        verdict = _recover_log(run, overall)
        if rules is None and run.rules is Rules.V4 and _ends_at_v2(listing, files, verdict.log_end):
            return recover(listing, Rules.V5, known)
        return verdict


def _resume_at(run: _Simulation, known: Verdict | None) -> int | None:
    """Where a walk resumes: at the known end, or at the first record that was in no queue then, but in a ledger, whose
    walk is of headers, always at the end. None if a queue has fewer entries than it had, as after a power failure.
    """
    if known is None or run.batches.lacks_some_of(known.listed_batches):
        return None
    for key, bounds in known.queues.items():
        if bounds.disk_stop > (run.states[key].tail.queue_offset if key in run.states else 0):
            return None
    if isinstance(run.listing.log, LedgerChain):
        return known.log_end
    batches = (tail.first_physical_offset for tail in known.batches.values())
    return min([known.log_end, *(replay.start for replay in known.replays), *batches])


def _magic(files: OpenFiles, file: ChainFile, position: int) -> int:
    head = system.pread(files.descriptor(file.path), BLANK.size, position)
    return int.from_bytes(head[BLANK.field("magic").offset :], "big")


def _ends_at_v2(listing: Listing, files: OpenFiles, log_end: int) -> bool:
    file = listing.log.file_at(log_end)
    if file is None:
        return False
    return _magic(files, file, log_end - file.base_offset + header_size(listing.log, file)) == MAGIC_V2


def chosen_rules(listing: Listing, files: OpenFiles) -> Rules:
    """5.x when the directory, a topic or the first record of a log file indicates it; else 4.9 (interface.md 8).

    Only 5.x has records with the V2 magic, and writes them for topics of more than 127 characters.
    """
    if listing.has_5x_marks or any(len(topic) > MOST_V1_TOPIC_CHARS for topic, _ in listing.queues):
        return Rules.V5
    log = listing.log
    magics = side_by_side(lambda file, own: _magic(own, file, header_size(log, file)), log.files, files, listing.root)
    return Rules.V5 if any(magic == MAGIC_V2 for magic in magics) else Rules.V4


def _recover_log(run: _Simulation, overall: int) -> Verdict:
    """Scans the log; `overall` is the address after the last record that some queue lists."""
    listing = run.listing
    entries_per_file = listing.entries_per_file or DEFAULT_ENTRIES_PER_FILE
    before = {key: state.tail for key, state in run.states.items()}
    dispatcher = Dispatcher(before, entries_per_file, run.rules is Rules.V5, run.batches.takes)
    # 4.9 dispatches from where the queues end, after the scan; all but its clean start dispatch during the scan.
    threshold = -1 if listing.abort else overall
    during = listing.abort or run.rules is Rules.V5
    ledger = _ledger_end(run)
    if ledger is None:
        first = _scan_start(run, overall)
        with walking(max(0, overall - max(listing.log.files[first].base_offset, run.resume or 0))):
            for records in _scan(run, first, overall):
                if during:
                    _dispatch(run, dispatcher, records, threshold)
    elif _scans_ledger(run):
        _dispatch_ledger(run, dispatcher, overall)
    if overall >= run.log_end:
        went = side_by_side(
            lambda item, own: _truncate(run, *item, dispatcher, own), run.states.items(), run.files, listing.root
        )
        cut = [key for key, gone in zip(run.states, went, strict=True) if gone]
        run.replays = [replace(replay, void=frozenset(cut)) for replay in run.replays]
    if ledger is not None:
        run.log_end, run.reason = ledger.end_offset, ledger.reason
    if run.rules is Rules.V4:
        _dispatch_after_scan(run, dispatcher, max([0, *(tail.reach for tail in dispatcher.tails.values())]))
    elif ledger is not None and isinstance(listing.log, LedgerChain):
        _dispatch_after_scan(run, dispatcher, max(ledger.committed_offset, listing.log.divided_offset))
    queues = {key: _queue_verdict(run.states.get(key), tail) for key, tail in dispatcher.tails.items()}
    return Verdict(
        run.rules, listing.log.start, run.log_end, queues, tuple(run.replays), run.reason, entries_per_file,
        (0, 0) if ledger is None else _unlisted(run, ledger), run.batches.tails, run.batches.topics, run.batches.listed,
        run.batches.stated, run.seen if run.seen.count <= MOST_CACHED_ADDRESSES else NOTHING_SCANNED,
    )  # fmt: skip


def _queue_verdict(state: QueueState | None, tail: QueueTail) -> QueueVerdict:
    if state is None or not state.tail.has_files:
        return QueueVerdict(tail.first, tail.queue_offset, tail.filler, tail.first)
    # The last entry is damaged if it does not name the last record.
    last = state.last_physical_offset if state.last_physical_offset == state.peak else -1
    return QueueVerdict(
        state.tail.queue_offset, tail.queue_offset, tail.filler, tail.first, state.head, last, state.stale
    )


def _trusting(run: _Simulation) -> Verdict:
    """`recovery=none`: the queues are used as they are, and no log is read."""
    queues = {}
    for key, queue in run.listing.queues.items():
        stop = queue.trusted_stop(run.files)
        last = int(queue.offsets(run.files, stop - 1, stop)[0]) if stop > queue.start else -1
        queues[key] = QueueVerdict(stop, stop, last_physical_offset=last)
    return Verdict(Rules.NONE, run.listing.log.start, run.listing.log.stop, queues)


# -- queues


def _truncate(run: _Simulation, key: QueueKey, state: QueueState, dispatcher: Dispatcher, files: OpenFiles) -> bool:
    """Drops entries from the end of the log on, as `truncateDirtyLogicFiles` does: file by file from the last.

    Returns whether it dropped entries that the scan had appended.
    """
    end = run.log_end
    appended = dispatcher.tails[key].queue_offset > state.tail.queue_offset
    if state.file_count and dispatcher.tails[key].queue_offset * QUEUE_ENTRY.size > state.last_file_end:
        return False  # the last file is a new one, which the scan filled with valid entries
    if state.file_count and state.peak < end and (state.peak >= 0 or appended):
        if appended:  # anything else behind the last entry that the scan of the queue counted is invalid
            _add_stale(run, key, state, dispatcher, files)
        return False
    for index in range(state.file_count - 1, -1, -1):
        count, reach = state.queue.truncated_stop(files, index, end)
        if count:
            queue_offset = state.queue.chain.files[index].base_offset // QUEUE_ENTRY.size + count
            state.tail, state.last_physical_offset = QueueTail(queue_offset, reach, True), -1
            dispatcher.tails[key] = state.tail
            return appended
    state.tail = QueueTail(0, end, False)
    if not appended or state.file_count:
        dispatcher.tails[key] = state.tail
    return appended and state.file_count > 0


def _add_stale(run: _Simulation, key: QueueKey, state: QueueState, dispatcher: Dispatcher, files: OpenFiles) -> None:
    """Adds the valid entries in the file's old bytes right behind those that the scan appended."""
    tail = dispatcher.tails[key]
    index = state.file_count - 1
    first = state.queue.chain.files[index].base_offset // QUEUE_ENTRY.size
    count, reach = state.queue.truncated_stop(files, index, run.log_end, tail.queue_offset - first)
    if count:
        state.stale = StaleEntries(tail.queue_offset, tail.queue_offset + count, tail.reach)
        dispatcher.tails[key] = replace(tail, queue_offset=state.stale.stop, reach=reach)


# -- the log


def _scan_start(run: _Simulation, overall: int) -> int:
    """Number of the log file at which the scan begins (rocketmq.md 5.4)."""
    files = run.listing.log.files
    if run.resume is not None:
        return run.listing.log.index_at(run.resume) or 0
    if run.listing.abort:
        return first_after_crash(run.listing, run.files, run.rules)
    if run.rules is Rules.V4:
        return max(0, len(files) - LOG_FILES_SCANNED)
    return max((i for i, file in enumerate(files) if file.base_offset <= overall), default=0)


def first_after_crash(listing: Listing, files: OpenFiles, rules: Rules) -> int:
    """Number of the log file at which a broker start after a crash begins to dispatch (rocketmq.md 5.4)."""

    def first_store_ms(file: ChainFile) -> int:
        head = head_at(log, files, first_record_offset(log, file))
        return head.store_ms if head is not None and head.magic in magics else 0

    log, limit = listing.log, listing.checkpoint.recover_ms
    magics, first = known_magics(rules), 0
    if isinstance(log, LedgerChain):
        magics, first = (MAGIC_V1,), next(number for number, file in enumerate(log.files) if log.is_ledger(file))
    backwards = range(len(log.files) - 1, first - 1, -1)
    # A damaged time may be negative: a broker takes it for an early one, only 0 for none.
    matched = (index for index in backwards if (store_ms := first_store_ms(log.files[index])) and store_ms <= limit)
    return next(matched, first)


def known_magics(rules: Rules) -> tuple[int, ...]:
    """Magics that a broker accepts for records: 4.9 does not support V2."""
    return (MAGIC_V1,) if rules is Rules.V4 else (MAGIC_V1, MAGIC_V2)


def _scan(run: _Simulation, index: int, likely_end: int) -> Iterator[RecordRun]:
    """Valid records from file number `index` on; sets the end of the log.

    Bytes behind `likely_end` are prefetched only if there are records behind it, or if their end is not known at all.
    """
    chain = run.listing.log
    checks = Checks(known_magics(run.rules), crc=True, whole_blank=run.rules is Rules.V5)
    scanned, resume = chain.files[index:], run.resume or 0
    # Compiled loops find the records by themselves.
    guesses = run.seen.sorted_from(max(scanned[0].base_offset, resume)) if is_guided() else None
    announced_to = likely_end + BLANK.size if likely_end > max(scanned[0].base_offset, resume) else chain.stop
    _announce_reads(run, scanned, resume, announced_to)
    for file in scanned:
        walk = FileWalk(
            chain, run.files, file, max(file.base_offset, resume), checks, guesses=guesses, likely_end=likely_end
        )
        headers = 0
        for records in walk:
            if likely_end < records.end_offset and announced_to < chain.stop:
                _announce_reads(run, scanned, max(announced_to, records.end_offset), chain.stop)
                announced_to = chain.stop
            yield records
            headers += header_size(chain, file) * len(records.sizes)
        run.log_end, run.reason = walk.end_offset - headers, walk.reason
        if walk.reason is not Stop.BLANK:
            break


def _announce_reads(run: _Simulation, files: Sequence[ChainFile], start: int, stop: int) -> None:
    run.files.will_need(
        (file.path, max(0, start - file.base_offset), min(stop, file.end) - file.base_offset)
        for file in files
        if file.base_offset < stop and file.end > start
    )


def _ledger_end(run: _Simulation) -> LedgerEnd | None:
    """Where DLedger ends the log, which counts until a scan finds another end. None for a log without DLedger."""
    listing = run.listing
    if not isinstance(listing.log, LedgerChain) or listing.ledger is None:
        return None
    log = listing.log
    found = ledger_end(listing.root, log, listing.ledger.committed, run.files, run.resume)
    run.log_end, run.reason = found.end_offset, found.reason
    # DLedger removes later files before anything else reads them.
    kept = tuple(file for file in log.files if file.base_offset <= found.end_offset)
    run.listing = replace(listing, log=replace(log, files=kept))
    return found


def _scans_ledger(run: _Simulation) -> bool:
    """Whether a broker start scans the records of a ledger: 5.x after a crash, and not while a broker runs."""
    listing = run.listing
    return listing.ledger is not None and run.rules is Rules.V5 and listing.abort and not listing.ledger.is_open


def _dispatch_ledger(run: _Simulation, dispatcher: Dispatcher, overall: int) -> None:
    """The scan of a ledger. It does not count headers, so it ends too early, and queues are cut there, including the
    entries that it has just dispatched (rocketmq.md 2.11).
    """
    run.resume = None
    first = first_after_crash(run.listing, run.files, run.rules)
    for _ in _scan(run, first, overall):
        pass
    limit = run.log_end if overall >= run.log_end else run.listing.log.stop
    for records in _scan(run, first, overall):
        count = int(np.searchsorted(records.physical_offsets, limit))
        if count:
            _dispatch(run, dispatcher, records.part(0, count), -1)
        if count < len(records.sizes) and run.first_cut < 0:
            run.first_cut = int(records.physical_offsets[count])


def _unlisted(run: _Simulation, ledger: LedgerEnd) -> tuple[int, int]:
    """Addresses of the records that were cut from the queues and are known to be committed: nothing dispatches them."""
    return (run.first_cut, ledger.committed_offset) if 0 <= run.first_cut < ledger.committed_offset else (0, 0)


def _dispatch(
    run: _Simulation, dispatcher: Dispatcher, records: RecordRun, threshold: int, misread_at: int | None = None
) -> None:
    """Feeds records whose PHYSICALOFFSET is larger than `threshold`, -1 for all."""
    if threshold < 0:
        _feed(run, dispatcher, records, misread_at)
        return
    fed = records.messages.column("physical_offset") > threshold
    for start, stop in np.flatnonzero(np.diff(fed, prepend=False, append=False)).reshape(-1, 2).tolist():
        run.skips |= start > 0
        _feed(run, dispatcher, records.part(start, stop), misread_at)
    run.skips |= not fed[-1]


def _feed(run: _Simulation, dispatcher: Dispatcher, records: RecordRun, misread_at: int | None) -> None:
    """Feeds records, and notes where the dispatcher began to append. Records that follow a misread one in its file are
    dispatched again from the misread one on.
    """
    before = dict(dispatcher.tails)
    physical_offset = int(records.physical_offsets[0])
    entries = dispatcher.feed(records)
    run.batches.feed(records)
    last = run.replays[-1] if run.replays else None
    limit = last.start + _replay_size(run) if last is not None and misread_at is None else run.log_end
    if last is not None and last.stop <= physical_offset < limit and not run.skips:
        run.replays[-1] = replace(last, stop=records.end_offset)
    elif len(entries.rows):
        first_appended = int(records.physical_offsets[entries.rows[0]])
        start = first_appended if misread_at is None else min(first_appended, misread_at)
        run.replays.append(Replay(start, records.end_offset, before))
        run.skips = False


def _replay_size(run: _Simulation) -> int:
    """The minimum length of a replay in bytes of log: each is one task of a read, independent of those before it."""
    log = run.listing.log
    count = min(MOST_REPLAYS, MOST_TAILS // max(len(run.states), 1))
    return max(REPLAY_SIZE, (log.stop - log.start) // max(count, 1))


def _dispatch_after_scan(run: _Simulation, dispatcher: Dispatcher, start: int) -> None:
    """Dispatches everything after the furthest queue, as 4.9 does at startup, without checking CRCs (rocketmq.md 5.5).
    5.x does so with a ledger, from the end of what is known to be committed (2.11), or from its first record.
    """
    chain = run.listing.log
    walk = dispatched_records(chain, run.files, max(start, chain.start), run.log_end, run.rules)
    for records in walk:
        _dispatch(run, dispatcher, records, -1, walk.misread_at)


def dispatched_records(chain: FileChain, files: OpenFiles, start: int, stop: int, rules: Rules) -> DispatchWalk:
    """Records of the log from `start` to `stop`, as the dispatcher of these rules walks them."""
    return DispatchWalk(chain, files, start, stop, known_magics(rules))
