"""Checks a vhost's index against its message store: damaged files, entries without a message, wrong counts.

What a node does in each case: rabbitmq.md 3.1, 4.2, 6.5 to 6.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from storage_core.files import system
from storage_core.files.small_file import names_in, read_at
from storage_core.finding import Finding
from storage_core.formats.layout import Positions
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.message.basic_message import Reach
from storage_core.job import FOLDER, pending_intent
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.effects import CRASHES, DELIVERING, HANGS, IGNORES, READING, Effect
from storage_core.rabbitmq.disk.span_reader import read_file
from storage_core.rabbitmq.disk.vhost_config import config_flaw
from storage_core.rabbitmq.disk.vhost_name import vhost_flaw
from storage_core.rabbitmq.index.entries import ACKED, JOURNAL, MISSING, SEGMENT, SHARED, flagged
from storage_core.rabbitmq.index.queue_directory import QueueFiles
from storage_core.rabbitmq.message_store.file_scan import scan_files
from storage_core.rabbitmq.message_store.locations import MessageLocations, file_sizes
from storage_core.rabbitmq.read.snapshot import NamedQueue, VhostSnapshot
from storage_core.rabbitmq.verify.contents import flaws, stray_delivers
from storage_core.rabbitmq.verify.kinds import Kind

QUEUE_SUFFIXES = (paths.SEGMENT_SUFFIX, paths.INDEX2_SUFFIX, paths.STORE2_SUFFIX)
STORE_SUFFIXES = (paths.MESSAGE_SUFFIX, paths.COMPACTION_SUFFIX)
QUEUE_NAMES = frozenset({paths.STUB_FILE, paths.JOURNAL_FILE})
STORE_NAMES = frozenset({paths.CLEAN_FILE, paths.SUMMARY_FILE, paths.INDEX_FILE})
WORK = "checking message files"
BLANK = "only zeros: no node writes such a segment"
NEVER_REMOVES = "never removes the message"
DELIVERED = "delivers it as it is"
CLOSES = "closes the connection of a consumer of AMQP 0-9-1"
SCANS = "scans the message files instead"
REFUSED = dict.fromkeys(STORE_SUFFIXES, "does not start the vhost")
REMOVED_EARLY = "may remove the message while a queue needs it"
_CUTS = "cuts it, or never looks at it"
_EFFECTS = {
    Kind.JOURNAL: Effect(READING, HANGS),
    Kind.TORN_JOURNAL: Effect(IGNORES, IGNORES),
    Kind.SEGMENT: Effect(READING, HANGS),
    Kind.MESSAGE: Effect(f"{CRASHES} at a message in it", "skips it"),
    Kind.TORN: Effect(f"{CRASHES} at a message in it", _CUTS),
    Kind.BLANK: Effect(f"{CRASHES} at a message in it", _CUTS),
}
"""What a node does about damage that has no effect of its own."""


def findings(snapshot: VhostSnapshot, queues: Sequence[NamedQueue], every_queue: bool) -> Iterator[Finding]:
    """The findings in some queues and the message store; reference counts are compared only if these are all queues."""
    yield from _unfinished(snapshot.root)
    yield from _names_and_settings(snapshot)
    listed: list[QueueFiles] = []
    for queue in queues:
        for directory in queue.directories:
            files = snapshot.files(directory)
            listed.append(files)
            yield from _of_queue(snapshot, files, queue.name)
    clean = snapshot.locations.clean
    yield from (_finding(damage, clean, None) for damage in _store_damages(snapshot))
    folder = f"{snapshot.root}/{paths.PERSISTENT_FOLDER}"
    if not clean and system.exists(f"{folder}/{paths.CLEAN_FILE}"):
        name = f"{paths.PERSISTENT_FOLDER}/{paths.CLEAN_FILE}"
        why = snapshot.terms_flaw or snapshot.locations.why
        effect = f"{SCANS}, or crashes with the damaged table" if why.startswith(paths.INDEX_FILE) else SCANS
        yield Finding(name, 0, 0, Kind.TABLES, why, effect, True)
    yield from _strange_files(folder, paths.PERSISTENT_FOLDER, STORE_NAMES, STORE_SUFFIXES, REFUSED)
    if every_queue and clean and not any(files.disagreements for files in listed):
        yield from _wrong_counts(snapshot.locations, listed)


def quick_findings(snapshot: VhostSnapshot) -> Iterator[Finding]:
    """The findings that can be made without reading messages, or message files after a clean stop."""
    yield from _unfinished(snapshot.root)
    yield from _names_and_settings(snapshot)
    for directory in snapshot.directories:
        files = snapshot.files(directory)
        yield from _of_index(snapshot, files, directory.directory)
    yield from (_finding(damage, snapshot.locations.clean, None) for damage in snapshot.locations.damages)


def _names_and_settings(snapshot: VhostSnapshot) -> Iterator[Finding]:
    root = snapshot.root
    flaw = config_flaw(root)
    if flaw is not None:
        size = system.stat(f"{root}/{paths.CONFIG_FILE}").size
        yield Finding(paths.CONFIG_FILE, 0, size, Kind.ODD, flaw, "takes 16384 entries a segment", True)
    flaw = vhost_flaw(root)
    if flaw is not None:
        size = system.stat(f"{root}/{paths.VHOST_FILE}").size
        yield Finding(paths.VHOST_FILE, 0, size, Kind.ODD, flaw, "rewrites it", True)
    for directory in snapshot.directories:
        if directory.misnamed:
            size = directory.sizes[paths.STUB_FILE]
            yield Finding(
                directory.stub, 0, size, Kind.ODD, "it does not name the queue of its folder", "rewrites it", True
            )


def _unfinished(root: str) -> Iterator[Finding]:
    if pending_intent(root) is not None:
        reason = "a write of mqstore is committed and not finished"
        yield Finding(f"{FOLDER}/intent.json", 0, 0, Kind.UNFINISHED, reason, "serves a part of it or none", True)


def _of_queue(snapshot: VhostSnapshot, files: QueueFiles, name: str) -> Iterator[Finding]:
    yield from _of_index(snapshot, files, name)
    for flaw in flaws(snapshot.root, files):
        entry = flaw.entry
        file, place, length = files.files[entry["file"]], entry["position"], entry["length"]
        reason = f"of sequence id {entry['sequence_id']}: {flaw.reason}"
        recovered = files.verdict.dirty and entry["kind"] in {SEGMENT, JOURNAL}
        effect = _effect_of(flaw.reach, recovered)
        kind = Kind.UNREADABLE if flaw.own_id is None else Kind.ID
        yield Finding(file, place, length, kind, reason, effect, flaw.reach is not Reach.OTHER_PROTOCOLS, name)


def _effect_of(reach: Reach, recovered: bool) -> str:
    """What a node does with a message; `recovered`: its recovery reads the message, not only its delivery."""
    if reach is Reach.NOWHERE and recovered:
        return HANGS
    if reach is Reach.FLAG and recovered:
        return f"{CRASHES} when it starts"
    if reach is Reach.OTHER_PROTOCOLS:
        return CLOSES
    return DELIVERED if reach in {Reach.FLAG, Reach.CONSUMER} else DELIVERING


def _of_index(snapshot: VhostSnapshot, files: QueueFiles, name: str) -> Iterator[Finding]:
    folder, clean = f"{paths.QUEUES_FOLDER}/{files.directory.directory}", not files.verdict.dirty
    stray = stray_delivers(f"{snapshot.root}/{folder}", folder, snapshot.entry_count)
    damages = [*_with_losses_joined(files), *stray]
    yield from (_finding(damage, clean, name) for damage in damages)
    for found in files.disagreements:
        yield Finding(folder, 0, 0, Kind.DISAGREEING, found.reason, found.effect, True, name)
    if files.other_bytes is not None:
        claim = f"and {paths.RECOVERY_FILE} says {files.other_bytes:,}"
        reason = f"messages of {files.body_bytes:,} bytes by the index, {claim}"
        fewer = files.other_bytes < files.body_bytes
        effect = f"{CRASHES} when it removes the last of them" if fewer else "counts bytes that are not there"
        yield Finding(folder, 0, 0, Kind.DISAGREEING, reason, effect, True, name)
    lost = np.flatnonzero(flagged(files.entries, MISSING) & ~flagged(files.entries, ACKED))
    for row in lost.tolist():
        entry = files.entries.row(row)
        reason = f"the message of sequence id {entry['sequence_id']} is in no message file"
        file, place, length = files.files[entry["file"]], entry["position"], entry["length"]
        yield Finding(file, place, length, Kind.DANGLING, reason, DELIVERING, True, name)
    for segment, size in _blank_segments(f"{snapshot.root}/{folder}"):
        yield Finding(f"{folder}/{segment}", 0, size, Kind.ODD, BLANK, "takes the segment for empty", True, name)
    refused = {} if clean else {paths.SEGMENT_SUFFIX: HANGS}
    yield from _strange_files(f"{snapshot.root}/{folder}", folder, QUEUE_NAMES, QUEUE_SUFFIXES, refused)


def _with_losses_joined(files: QueueFiles) -> Iterator[Damage]:
    """The damage in the index, with one for all messages of a file that a killed node had not written."""
    unwritten = files.unwritten
    lost, dropped = dict[str, list[Damage]](), set(unwritten)
    for damage in unwritten:
        lost.setdefault(damage.file, []).append(damage)
    yield from (damage for damage in files.damages if damage not in dropped)
    for first, *others in lost.values():
        if not others:
            yield first
            continue
        ids = f"of sequence ids {first.awaited} to {others[-1].awaited}"
        reason = f"{len(others) + 1:,} messages, {ids}, lie after the end of its .qs file"
        yield replace(first, length=others[-1].position + others[-1].length - first.position, reason=reason)


def _finding(damage: Damage, clean: bool, queue: str | None) -> Finding:
    kind = Kind(damage.kind)
    effect = (damage.effect or _EFFECTS[kind]).after(clean)
    return Finding(damage.file, damage.position, damage.length, kind, damage.reason, effect, True, queue)


def _store_damages(snapshot: VhostSnapshot) -> list[Damage]:
    """Damage in the message files; a node that trusts its tables does not look for it."""
    if not snapshot.locations.clean:
        return snapshot.locations.damages
    scans = scan_files(snapshot.root, list(file_sizes(snapshot.root)), WORK)
    return [damage for scan in scans for damage in scan.damages]


def _blank_segments(folder: str) -> Iterator[tuple[str, int]]:
    """Names and lengths of the segments that hold nothing but zeros: a power failure leaves them when the length of a
    file reached the disk before its bytes.
    """
    for name in names_in(folder):
        if paths.number_of(name, paths.SEGMENT_SUFFIX) is not None and not any(read_at(f"{folder}/{name}", 2)):
            data = read_file(f"{folder}/{name}")
            if data and not data.strip(b"\0"):
                yield name, len(data)


def _strange_files(
    folder: str, name: str, names: frozenset[str], suffixes: Sequence[str], refused: Mapping[str, str]
) -> Iterator[Finding]:
    """Files that a node does not write there; `refused` maps a suffix without a number to what a node does about it."""
    try:
        entries = sorted(system.entries(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        numbered = any(paths.number_of(entry.name, suffix) is not None for suffix in suffixes)
        if not numbered and entry.name not in names:
            size = 0 if entry.is_directory else entry.size
            effect = next((reaction for suffix, reaction in refused.items() if entry.name.endswith(suffix)), IGNORES)
            yield Finding(f"{name}/{entry.name}", 0, size, Kind.ODD, "no node writes such a file", effect, True)


def _wrong_counts(locations: MessageLocations, listed: Sequence[QueueFiles]) -> Iterator[Finding]:
    """Rows of the message store's table whose reference count is not the number of entries that need the message."""
    rows = locations.rows
    if not len(rows):
        return
    needed, counts = np.unique(_needed(locations, listed), return_counts=True)
    keys = _key(rows["file"].astype(np.int64), rows["position"].astype(np.int64))
    at = np.minimum(np.searchsorted(needed, keys), max(len(needed) - 1, 0))
    actual = np.where(needed[at] == keys, counts[at], 0) if len(needed) else np.zeros(len(keys), np.int64)
    for row in np.flatnonzero(rows["references"] != actual).tolist():
        noted, found = int(rows["references"][row]), int(actual[row])
        reason = f"{paths.INDEX_FILE} counts {noted} references to the message here, the queues have {found}"
        file = locations.files.get(int(rows["file"][row]), f"{paths.PERSISTENT_FOLDER}/{int(rows['file'][row])}.rdq")
        lacking = REMOVED_EARLY if noted else DELIVERING
        effect = NEVER_REMOVES if noted > found else lacking
        place, size = int(rows["position"][row]), int(rows["size"][row])
        yield Finding(file, place, size, Kind.COUNT, reason, effect, True)


def _needed(locations: MessageLocations, listed: Sequence[QueueFiles]) -> Positions:
    """The keys of the stored messages of all live entries of all queues."""
    numbers = {path: number for number, path in locations.files.items()}
    parts = [np.empty(0, np.int64)]
    for files in listed:
        served = files.served
        shared = served[served["kind"] == SHARED]
        if len(shared):
            of_file = np.array([numbers.get(path, -1) for path in files.files], np.int64)
            parts.append(_key(of_file[shared["file"]], shared["position"].astype(np.int64)))
    return np.concatenate(parts)


def _key(file: Positions, position: Positions) -> Positions:
    return (file << 40) | position
