"""The judge: what a stock broker would serve after it opened this directory. It reads, decides and touches nothing.

It leaves an end of the log and bounds per queue, never entries. Carrying a verdict out is for `repair`.
Source of the rules: rocketmq.md 3.4, 3.5, 5.4, 5.5 and interface.md 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.formats.rocketmq.message import BORN_HOST_V6, HEADER_V4, MAGIC_V1, MAGIC_V2, Stop
from storage_core.rocketmq.commitlog import Checks, FileWalk, Stretch
from storage_core.rocketmq.consumequeue import ConsumeQueue, ValidUnits
from storage_core.rocketmq.dispatch import Dispatcher, QueueTail
from storage_core.rocketmq.listing import Listing
from storage_core.store import QueueKey

QUEUE_FILES_SCANNED = 3
LOG_FILES_SCANNED = 3
MOST_V1_TOPIC_CHARS = 127
DEFAULT_UNITS_PER_FILE = 300_000
REPLAY_SIZE = 64 << 20


class Rules(Enum):
    """Whose rules say what a store serves."""

    V4 = "4.9"
    V5 = "5.x"
    NONE = "none"


@dataclass(frozen=True)
class QueueVerdict:
    """One queue after the start of a broker: units [.., disk_stop) are in its files, [disk_stop, stop) only in the log.

    `first` is the first ordinal that is no filler; `filler` begins the filler units that the start itself would write.
    `head` (place and size of the first unit) and `last_place` (of the last one in its files) save reading them again,
    where the judge saw them.
    """

    disk_stop: int
    stop: int
    filler: int = 0
    first: int = 0
    head: tuple[int, int] | None = None
    last_place: int = -1


@dataclass(frozen=True)
class Replay:
    """A part of the log [start, stop) that is dispatched anew, and the queues' tails when the dispatcher enters it.

    What it appends to the queues in `void` is cut away again before the start is over.
    """

    start: int
    stop: int
    tails: Mapping[QueueKey, QueueTail]
    void: frozenset[QueueKey] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """What the judge found. Addresses are half-open: the log is [log_start, log_end).

    `replays` are the parts of the log that are dispatched anew, in the order in which that happens.
    """

    rules: Rules
    log_start: int
    log_end: int
    queues: Mapping[QueueKey, QueueVerdict]
    replays: tuple[Replay, ...] = ()
    reason: Stop = Stop.END
    units_per_file: int = DEFAULT_UNITS_PER_FILE

    @property
    def jumps_over_new_fillers(self) -> bool:
        """Whether a pull stumbles over fillers that this very start wrote: 4.9 with a log from 0 (rocketmq.md 3.3)."""
        return self.rules is Rules.V4 and self.log_start == 0


@dataclass
class _QueueState:
    """A queue while it is recovered.

    `peak` is the largest place in the last file that is kept; `head` and `last_place` are what the scan saw of its
    first and last unit.
    """

    queue: ConsumeQueue
    tail: QueueTail
    kept: int = 0
    peak: int = -1
    head: tuple[int, int] | None = None
    last_place: int = -1


@dataclass
class _Case:
    """One judgement in the making."""

    listing: Listing
    files: OpenFiles
    rules: Rules
    resume: int | None = None
    states: dict[QueueKey, _QueueState] = field(default_factory=dict)
    log_end: int = 0
    reason: Stop = Stop.END
    replays: list[Replay] = field(default_factory=list)


def judge(listing: Listing, rules: Rules | None = None, known: Verdict | None = None) -> Verdict:
    """Judges a store by the rules of 4.9.3, of 5.3.3, or by what the directory says of itself.

    Streams the part of the log that the broker would scan, or what lies behind the end of a verdict that is `known`
    to hold; memory stays within one window.
    """
    with OpenFiles() as files:
        case = _Case(listing, files, rules or chosen_rules(listing, files), _resume_at(known))
        if case.rules is Rules.NONE:
            return _trusting(case)
        for key, queue in listing.queues.items():
            case.states[key] = _recover_queue(queue, files)
        overall = max((state.tail.reach for state in case.states.values()), default=-1)
        if not listing.log.files:
            return Verdict(case.rules, 0, 0, {key: QueueVerdict(0, 0) for key in listing.queues})
        verdict = _recover(case, overall)
        if rules is None and case.rules is Rules.V4 and _magic_at(case, verdict.log_end) == MAGIC_V2:
            return judge(listing, Rules.V5, known)
        return verdict


def _resume_at(known: Verdict | None) -> int | None:
    """Where a walk goes on: behind the known end, or where records begin that were in no queue then."""
    if known is None:
        return None
    return min([known.log_end, *(replay.start for replay in known.replays)])


def _magic_at(case: _Case, address: int) -> int:
    file = case.listing.log.file_at(address)
    if file is None:
        return 0
    head = system.pread(case.files.descriptor(file.path), 8, address - file.base_offset)
    return int.from_bytes(head[4:8], "big")


def chosen_rules(listing: Listing, files: OpenFiles) -> Rules:
    """5.x when the directory, a topic or the first record of a log file says so; else 4.9 (interface.md 8).

    Only 5.x has records with the V2 magic, and writes them for topics of more than 127 characters.
    """
    if listing.says_5x or any(len(topic) > MOST_V1_TOPIC_CHARS for topic, _ in listing.queues):
        return Rules.V5
    for file in listing.log.files:
        head = system.pread(files.descriptor(file.path), 8, 0)
        if head[4:8] == MAGIC_V2.to_bytes(4, "big"):
            return Rules.V5
    return Rules.V4


def _recover(case: _Case, overall: int) -> Verdict:
    listing = case.listing
    units_per_file = _units_per_file(listing)
    before = {key: state.tail for key, state in case.states.items()}
    dispatcher = Dispatcher(before, units_per_file)
    start = _scan_start(case, overall)
    # 4.9 dispatches from where the queues end when the scan is over; all but its clean start dispatch while they scan.
    threshold = -1 if listing.abort else overall
    during = listing.abort or case.rules is Rules.V5
    for stretch in _scan(case, start):
        if during:
            _dispatch(case, dispatcher, stretch, threshold)
    if overall >= case.log_end:
        cut = [key for key, state in case.states.items() if _truncate(case, key, state, dispatcher)]
        case.replays = [replace(replay, void=frozenset(cut)) for replay in case.replays]
    if case.rules is Rules.V4:
        _dispatch_behind(case, dispatcher)
    queues = {key: _queue_verdict(case.states.get(key), tail) for key, tail in dispatcher.tails.items()}
    return Verdict(
        case.rules, listing.log.start, case.log_end, queues, tuple(case.replays), case.reason, units_per_file
    )


def _queue_verdict(state: _QueueState | None, tail: QueueTail) -> QueueVerdict:
    if state is None or not state.tail.has_files:
        return QueueVerdict(tail.first, tail.ordinal, tail.filler, tail.first)
    return QueueVerdict(state.tail.ordinal, tail.ordinal, tail.filler, tail.first, state.head, state.last_place)


def _units_per_file(listing: Listing) -> int:
    sizes = [queue.units_per_file for queue in listing.queues.values() if queue.chain.files]
    return max(sizes, default=0) or DEFAULT_UNITS_PER_FILE


def _trusting(case: _Case) -> Verdict:
    """`recovery=none`: the queues are believed as they lie there, and no log is read."""
    queues = {}
    for key, queue in case.listing.queues.items():
        stop = queue.trusted_stop(case.files)
        filled = stop > queue.chain.start // 20
        last = int(queue.offsets(case.files, stop - 1, stop)[0]) if filled else -1
        queues[key] = QueueVerdict(stop, stop, last_place=last)
    return Verdict(Rules.NONE, case.listing.log.start, case.listing.log.stop, queues)


# -- queues


def _recover_queue(queue: ConsumeQueue, files: OpenFiles) -> _QueueState:
    """The last three files are scanned; the first unit that is not valid ends the queue (rocketmq.md 3.4)."""
    chain = queue.chain
    if not chain.files:
        return _QueueState(queue, QueueTail())
    index = first = max(0, len(chain.files) - QUEUE_FILES_SCANNED)
    head = None
    last = ValidUnits()
    while True:
        found = queue.valid_units(files, index)
        if index == first == 0 and found.count:
            head = (found.first_place, found.first_size)
        last = found if found.count else last
        if found.count < queue.units_per_file or index + 1 == len(chain.files):
            break
        index += 1
    ordinal = chain.files[index].base_offset // 20 + found.count
    return _QueueState(queue, QueueTail(ordinal, last.reach, True), index + 1, found.peak, head, last.last_place)


def _truncate(case: _Case, key: QueueKey, state: _QueueState, dispatcher: Dispatcher) -> bool:
    """Drops units at or behind the end of the log, as `truncateDirtyLogicFiles` does; file by file from the last.

    Tells whether units went that the scan before had appended.
    """
    end = case.log_end
    appended = dispatcher.tails[key].ordinal > state.tail.ordinal
    if state.kept and state.peak < end and (state.peak >= 0 or appended):
        return False
    index = state.kept - 1
    while index >= 0:
        count, reach = state.queue.truncated_stop(case.files, index, end)
        if count:
            ordinal = state.queue.chain.files[index].base_offset // 20 + count
            state.tail, state.last_place = QueueTail(ordinal, reach, True), -1
            dispatcher.tails[key] = state.tail
            return appended
        index -= 1
    state.tail = QueueTail(0, end, False)
    if not appended or state.kept:
        dispatcher.tails[key] = state.tail
    return appended and state.kept > 0


# -- the log


def _scan_start(case: _Case, overall: int) -> int:
    """Number of the log file at which the scan begins (rocketmq.md 5.4)."""
    files = case.listing.log.files
    if case.resume is not None:
        return case.listing.log.index_at(case.resume) or 0
    if case.listing.abort:
        limit = case.listing.checkpoint.recover_ms
        matched = (i for i in range(len(files) - 1, -1, -1) if 0 < _first_store_ms(case, i) <= limit)
        return next(matched, 0)
    if case.rules is Rules.V4:
        return max(0, len(files) - LOG_FILES_SCANNED)
    return max((i for i, file in enumerate(files) if file.base_offset <= overall), default=0)


def _first_store_ms(case: _Case, index: int) -> int:
    """Store time of a file's first record; 0 when the file begins with none."""
    file = case.listing.log.files[index]
    head = system.pread(case.files.descriptor(file.path), HEADER_V4.size, 0)
    if len(head) < HEADER_V4.size:
        return 0
    if int.from_bytes(head[4:8], "big") not in known_magics(case.rules):
        return 0
    at = 68 if int.from_bytes(head[36:40], "big") & BORN_HOST_V6 else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def known_magics(rules: Rules) -> tuple[int, ...]:
    """Magics of records that a broker takes for records: 4.9 knows no V2."""
    return (MAGIC_V1,) if rules is Rules.V4 else (MAGIC_V1, MAGIC_V2)


def _scan(case: _Case, index: int) -> Iterator[Stretch]:
    """Valid records from file number `index` on; sets the end of the log."""
    chain = case.listing.log
    checks = Checks(known_magics(case.rules), crc=True)
    for file in chain.files[index:]:
        walk = FileWalk(chain, case.files, file, max(file.base_offset, case.resume or 0), checks)
        yield from walk
        case.log_end, case.reason = walk.end_offset, walk.reason
        if walk.reason is not Stop.BLANK:
            break


def _dispatch(case: _Case, dispatcher: Dispatcher, stretch: Stretch, threshold: int) -> None:
    """Feeds records whose address lies above `threshold`; remembers where it began to append."""
    if threshold >= 0:
        first = int(np.searchsorted(stretch.messages.column("physical_offset"), threshold, "right"))
        if first == len(stretch.sizes):
            return
        stretch = stretch.tail(first)
    before = dict(dispatcher.tails)
    place = int(stretch.places[0])
    appended = dispatcher.feed(stretch)
    last = case.replays[-1] if case.replays else None
    if last is not None and last.stop <= place < last.start + REPLAY_SIZE:
        case.replays[-1] = replace(last, stop=stretch.end_offset)
    elif len(appended.places):
        first_appended = int(stretch.places[appended.rows[0]])
        case.replays.append(Replay(first_appended, stretch.end_offset, before))


def _dispatch_behind(case: _Case, dispatcher: Dispatcher) -> None:
    """4.9's start: everything behind the furthest queue is dispatched, with no look at CRCs (rocketmq.md 5.5)."""
    chain = case.listing.log
    offset = max([chain.start, *(tail.reach for tail in dispatcher.tails.values())])
    for walk in walk_from(chain, case.files, offset, case.log_end, case.rules):
        for stretch in walk:
            _dispatch(case, dispatcher, stretch, -1)


def walk_from(chain: FileChain, files: OpenFiles, offset: int, stop: int, rules: Rules) -> Iterator[FileWalk]:
    """Walks of the log from `offset` to `stop`, file by file, as the dispatcher goes: no CRC, damage skips the file."""
    checks = Checks(known_magics(rules), crc=False)
    for file in chain.files:
        if file.end <= offset or file.base_offset >= stop:
            continue
        clipped = replace(file, size=min(file.end, stop) - file.base_offset)
        yield FileWalk(chain, files, clipped, max(offset, file.base_offset), checks)
