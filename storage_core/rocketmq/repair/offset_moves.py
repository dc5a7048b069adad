"""Moves the offsets of consumer groups and delay levels when a queue is rebuilt with different queue offsets.

A queue that lost messages closes the gap (rocketmq.md 3.3). So an offset is remembered as the address of the message
that it refers to, and set to that message's new queue offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from storage_core.files.file_chain import FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import remove_file, write_whole
from storage_core.formats.java_numbers import natural_of, whole_of
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.config_json import encode_offsets
from storage_core.job import JobFolder, read_json, write_json
from storage_core.rocketmq.disk.config_files import (
    committed_offsets,
    config_to_change,
    delay_offsets,
    offsets_file,
)
from storage_core.rocketmq.disk.consume_queue import ConsumeQueue
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.dispatch import due_entries
from storage_core.rocketmq.recovery.recovery import dispatched_records
from storage_core.rocketmq.recovery.verdict import Rules
from storage_core.rocketmq.verify.kinds import Subject
from storage_core.store import QueueKey

NOTE = "repair-offsets.json"
QueueOffset = tuple[str, int, int]
"""Topic, queue id and queue offset."""
DELAYS = "delayOffset.json"


def note_path(root: str) -> str:
    """The file in which the offsets are remembered until they are set."""
    return os.path.join(JobFolder(root).folder, NOTE)


def remember(subject: Subject, keys: Iterable[QueueKey]) -> None:
    """Notes the offsets of groups and delay levels in these queues as addresses, and how many entries a queue file has,
    before the files that show it are removed; keeps what a stopped repair noted.
    """
    listing, root = subject.listing, subject.listing.root
    note = read_json(note_path(root)) or {}
    before = note.get("offsets", [])
    noted = {(topic, queue_id, offset): address for topic, queue_id, offset, address in before}
    wanted, unlisted = set(keys), set[QueueOffset]()
    with OpenFiles() as files:
        for offsets in (*committed_offsets(root).values(), _delays_by_queue(root)):
            for key, offset in offsets.items():
                if key not in wanted or offset <= 0 or (*key, offset) in noted:
                    continue
                queue = listing.queues.get(key)
                address = None if queue is None else _address(queue, files, offset, listing.log)
                if address is not None:
                    noted[*key, offset] = address
                elif queue is None or not queue.chain.files or offset > queue.start:
                    unlisted.add((*key, offset))
    noted |= _addresses_by_records(subject, unlisted)
    content = {"offsets": [[*key, address] for key, address in noted.items()]}
    entries = note.get("queueEntries", listing.entries_per_file)
    write_json(note_path(root), {**note, **content, **({"queueEntries": entries} if entries else {})})


def remembered_entries(root: str) -> int | None:
    """How many entries a queue file has, as this or a stopped repair noted it; None without a note."""
    entries: int | None = (read_json(note_path(root)) or {}).get("queueEntries")
    return entries


def remember_in_order(root: str, keys: Iterable[QueueKey]) -> None:
    """Notes the queues that are about to be replaced by lists in the order of the log: one that a stop leaves missing
    would look like one that a broker start lists.
    """
    note = read_json(note_path(root)) or {}
    write_json(note_path(root), {**note, "inOrder": sorted(map(list, keys))})


def remembered_in_order(root: str) -> set[QueueKey]:
    """The queues that a stopped repair may not have replaced yet; none that cannot have a folder."""
    noted = (read_json(note_path(root)) or {}).get("inOrder", [])
    return {(topic, queue_id) for topic, queue_id in noted if paths.has_folder(topic, queue_id)}


def _address(queue: ConsumeQueue, files: OpenFiles, offset: int, log: FileChain) -> int | None:
    """The address of the message at an offset; at the queue's end, one past that of the last message.

    None if no entry states it.
    """
    if not queue.chain.files or not queue.start < offset:
        return None
    at_end = offset == queue.valid_stop(files)
    entry = queue.entries(files, offset - at_end, offset - at_end + 1)[0]
    address = int(entry["physical_offset"])
    return address + at_end if int(entry["size"]) > 0 and log.start <= address < log.stop else None


def _addresses_by_records(subject: Subject, unlisted: Iterable[QueueOffset]) -> dict[QueueOffset, int]:
    """For each offset the address of the first message with this QUEUEOFFSET or a later one; one past that of the last
    message if there is none, no address if the queue has no message.
    """
    wanted: dict[QueueKey, list[int]] = {}
    for topic, queue_id, offset in unlisted:
        wanted.setdefault((topic, queue_id), []).append(offset)
    found: dict[QueueOffset, int] = {}
    ends: dict[QueueKey, int] = {}
    if not wanted:
        return found
    log, verdict = subject.listing.log, subject.verdict
    with OpenFiles() as files:
        for run in dispatched_records(log, files, log.start, verdict.log_end, verdict.rules):
            due = due_entries(run.messages, verdict.rules is Rules.V5, verdict.is_batched)
            for number, key in enumerate(due.keys):
                rows = np.flatnonzero(due.queue == number) if key in wanted else ()
                if not len(rows):
                    continue
                addresses, offsets = run.physical_offsets[due.rows[rows]], due.queue_offsets[rows]
                for offset in wanted[key]:
                    if (offsets >= offset).any():
                        found.setdefault((*key, offset), int(addresses[(offsets >= offset).argmax()]))
                ends[key] = int(addresses[-1]) + 1
    past = {(*key, offset): ends[key] for key, offsets in wanted.items() if key in ends for offset in offsets}
    return past | found


def _delays_by_queue(root: str) -> dict[QueueKey, int]:
    """The broker's offset in each queue of delayed messages: that of the next message to deliver."""
    return {(paths.SCHEDULE_TOPIC, level - 1): offset for level, offset in delay_offsets(root).items()}


def set_remembered(listing: Listing) -> list[str]:
    """Sets the remembered offsets. Returns what changed, a line for each group or delay level and queue.

    The new files are noted before any of them is put in place, because a moved offset must not be moved again.
    """
    root = listing.root
    moved = _moves(listing, (read_json(note_path(root)) or {}).get("offsets", []))
    lines: list[str] = []
    if moved:
        contents = {}
        for name, change in ((offsets_file(root), _moved_groups), (DELAYS, _moved_delays)):
            content = config_to_change(root, name)
            changes = [f"{paths.CONFIG}/{name}: {line}" for line in change(content, moved)]
            if changes:
                contents[name] = encode_offsets(content).decode()
                lines += changes
        write_json(note_path(root), {"contents": contents})
    finish_moves(root)
    return lines


def is_set(root: str) -> bool:
    """Whether a stopped repair had worked out the new offsets, but had yet to put the files in place."""
    return "contents" in (read_json(note_path(root)) or {})


def finish_moves(root: str) -> None:
    """Puts the files that this or a stopped repair noted in place, and removes the note."""
    note = read_json(note_path(root)) or {}
    for name, text in note.get("contents", {}).items():
        write_whole(os.path.join(root, paths.CONFIG, name), text.encode())
    remove_file(note_path(root))


def _moves(listing: Listing, noted: Iterable[tuple[str, int, int, int]]) -> dict[tuple[str, int, int], int]:
    """The new offset for each old offset that has changed."""
    moved = {}
    with OpenFiles() as files:
        for topic, queue_id, offset, address in noted:
            queue = listing.queues.get((topic, queue_id))
            if queue is not None and queue.chain.files:
                stop = queue.valid_stop(files)
                new = int(queue.lower_bounds(files, queue.start, stop, np.array([address]))[0])
                if new != offset:
                    moved[topic, queue_id, offset] = new
    return moved


def _moved_groups(content: dict[str, Any], moved: dict[tuple[str, int, int], int]) -> Iterator[str]:
    for name, offsets in _table(content, "offsetTable").items():
        topic, _, group = name.partition("@")
        for queue_id in list(offsets) if isinstance(offsets, dict) else ():
            new = _moved(moved, topic, whole_of(queue_id, 32), offsets[queue_id])
            if new is not None:
                yield f"group {group} in {topic}/{queue_id}: {offsets[queue_id]} is {new} now"
                offsets[queue_id] = new
    light = _table(content, "lmqOffsetTable")
    for name in list(light):
        topic, _, group = name.partition("@")
        new = _moved(moved, topic, 0, light[name])
        if new is not None:
            yield f"group {group} in {topic}/0: {light[name]} is {new} now"
            light[name] = new


def _moved_delays(content: dict[str, Any], moved: dict[tuple[str, int, int], int]) -> Iterator[str]:
    offsets = _table(content, "offsetTable")
    for level in list(offsets):
        number = natural_of(level, 32)
        new = _moved(moved, paths.SCHEDULE_TOPIC, None if number is None else number - 1, offsets[level])
        if new is not None:
            yield f"level {level}: {offsets[level]} is {new} now"
            offsets[level] = new


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    table = content.get(name)
    return table if isinstance(table, dict) else {}


def _moved(moved: dict[tuple[str, int, int], int], topic: str, queue_id: int | None, offset: Any) -> int | None:
    """The new offset of a queue; None if it has not changed, or if a config file names no queue or offset."""
    return moved.get((topic, queue_id, offset)) if queue_id is not None and isinstance(offset, int) else None
