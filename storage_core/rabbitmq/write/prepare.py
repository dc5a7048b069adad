"""Plans a job before its commit point: assigns all numbers, and stages the files that the driver contributes.

Nothing that is served changes here. `placement` assigns the numbers, `clean_stop` builds the files of a clean stop.
Source: commit-protocol.md 15, rabbitmq.md 1.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_core.files import system
from storage_core.files.small_file import write_whole
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import ets_dump
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq.disk import definitions, unfinished
from storage_core.rabbitmq.disk.span_reader import read_file
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.write import clean_stop
from storage_core.rabbitmq.write.file_numbers import give_number
from storage_core.rabbitmq.write.options import WriteOptions
from storage_core.rabbitmq.write.placement import CLEAN_PATHS, Placement, placement_of
from storage_core.rabbitmq.write.store_facts import StoreFacts
from storage_core.store import StagedPart

MAX_PRIORITY = "x-max-priority"


def prepare(facts: StoreFacts, options: WriteOptions, folder: str, parts: Sequence[StagedPart]) -> Placement:
    """The placement of `parts`, which are in their final order and whose files are in the staging `folder`.

    Raises MqStoreError when the version of a queue has changed since they were staged.
    """
    root = facts.root
    snapshot = VhostSnapshot(root, "", facts.vhost, facts.entry_count, True)
    placement = placement_of(snapshot, parts, facts)
    for source, target in placement.moves:
        give_number(f"{folder}/{source}", target)
    for directory, queue in placement.queues.items():
        if not queue.known:
            stub = paths.encode_stub(QueueName(facts.vhost.encode(), queue.name, queue.priority, queue.version))
            write_whole(f"{folder}/stub.{directory}", stub)
            placement.moves.append((f"stub.{directory}", f"{paths.QUEUES_FOLDER}/{directory}/{paths.STUB_FILE}"))
    if not any(system.exists(f"{root}/{name}") for name in (paths.PERSISTENT_FOLDER, paths.QUEUES_FOLDER)):
        _stage_skeleton(facts, folder, placement)
    if not placement.has_message_files:
        write_whole(f"{folder}/empty{paths.MESSAGE_SUFFIX}", b"")
        first = f"{paths.PERSISTENT_FOLDER}/0{paths.MESSAGE_SUFFIX}"
        placement.moves.append((f"empty{paths.MESSAGE_SUFFIX}", first))
    if placement.clean:
        _stage_clean_stop(snapshot, placement, options.priorities, folder, parts)
    if snapshot.locations.clean:
        _save_tables(root, folder)
    definitions.write(root, facts.vhost, _declared(placement, options))
    return placement


def _stage_skeleton(facts: StoreFacts, folder: str, placement: Placement) -> None:
    """Stages the files that identify a new store: its configuration, and the name of its vhost."""
    contents = {
        paths.CONFIG_FILE: paths.encode_config(facts.entry_count),
        paths.VHOST_FILE: facts.vhost.encode(),
    }
    for name, data in contents.items():
        write_whole(f"{folder}/new{name}", data)
        placement.moves.insert(0, (f"new{name}", name))


def _stage_clean_stop(
    snapshot: VhostSnapshot,
    placement: Placement,
    priorities: Mapping[bytes, int],
    folder: str,
    parts: Sequence[StagedPart],
) -> None:
    rows = [_index_rows(folder, part, placement) for part in parts]
    files = clean_stop.files(snapshot, placement, np.concatenate(rows) if rows else None, priorities)
    for path, data in files.items():
        name = f"clean.{path.rsplit('/', 1)[-1]}"
        write_whole(f"{folder}/{name}", data)
        placement.clean_moves.append((name, path))


def _index_rows(folder: str, part: StagedPart, placement: Placement) -> npt.NDArray[np.void]:
    """The rows that a task staged for the message store's index, with the final numbers of its files."""
    rows = np.frombuffer(read_file(f"{folder}/{part.detail['index']}"), ets_dump.INDEX_ROW).copy()
    numbers = np.array([placement.file_numbers[name] for name, _ in part.detail["messageFiles"]], np.int64)
    if len(rows):
        rows["file"] = numbers[rows["file"]]
    return rows


def _save_tables(root: str, folder: str) -> None:
    """Copies aside the files of the last clean stop: readers use the copies until the job is done."""
    before = f"{folder}/{unfinished.BEFORE}"
    system.make_folder(before)
    for path in CLEAN_PATHS:
        write_whole(f"{before}/{path.rpartition('/')[2]}", read_file(f"{root}/{path}"))


def _declared(placement: Placement, options: WriteOptions) -> dict[str, dict[str, Any]]:
    """The arguments of the queues that received messages, by name."""
    arguments_by_queue: dict[str, dict[str, Any]] = {}
    for queue in placement.queues.values():
        own = options.queue is not None and queue.name == options.queue.encode()
        arguments = dict(options.arguments) if own else {}
        most = options.priorities.get(queue.name)
        if most is not None:
            arguments.setdefault(MAX_PRIORITY, most)
        arguments_by_queue[queue.name.decode("utf-8", "replace")] = arguments
    return arguments_by_queue
