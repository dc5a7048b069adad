"""The files that a clean stop leaves, rewritten after a job added to the store: terms, client list, both tables.

The cost is linear in the size of the vhost. `placement` determines what was added. Source: rabbitmq.md 1.4 to 1.6.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import erlang_text, ets_dump
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.rabbitmq.disk import recovery_terms
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.span_reader import read_file, read_table
from storage_core.rabbitmq.message_store.locations import INDEX_MODULE
from storage_core.rabbitmq.read.snapshot import VhostSnapshot
from storage_core.rabbitmq.write.placement import PlacedQueue, Placement


def files(
    snapshot: VhostSnapshot, placement: Placement, added: npt.NDArray[np.void] | None, priorities: Mapping[bytes, int]
) -> dict[str, bytes]:
    """The files by their path below the store, in the order in which they are put in place.

    `added` are rows of dtype INDEX_ROW for the new message files. A node treats the store as clean only when all of the
    files are there, and the terms come last.
    """
    terms = _terms(snapshot, placement, priorities)
    names_index = _names_index(snapshot)
    lines: list[tuple[Atom, object]] = [
        (Atom("client_refs"), sorted(queue.client for queue in terms.values() if queue.client is not None))
    ]
    if names_index:
        lines.append((Atom("index_module"), Atom(INDEX_MODULE)))
    rows = snapshot.locations.rows if snapshot.locations.clean else np.empty(0, ets_dump.INDEX_ROW)
    rows = rows if added is None else np.concatenate([rows, added])
    folder = paths.PERSISTENT_FOLDER
    return {
        f"{folder}/{paths.INDEX_FILE}": ets_dump.encode_index(rows),
        f"{folder}/{paths.SUMMARY_FILE}": ets_dump.encode_summary(_summary(snapshot, placement), linked=names_index),
        f"{folder}/{paths.CLEAN_FILE}": "".join(erlang_text.render(line) + ".\n" for line in lines).encode(),
        paths.RECOVERY_FILE: recovery_terms.encode(terms.values()),
    }


def _names_index(snapshot: VhostSnapshot) -> bool:
    """Whether the node that stopped last supports several kinds of index and links message files (up to 3.12; 6.8)."""
    if not snapshot.locations.clean:
        return True
    data = read_file(f"{snapshot.root}/{paths.PERSISTENT_FOLDER}/{paths.CLEAN_FILE}")
    return any(isinstance(term, tuple) and term[0] == "index_module" for term in erlang_text.parse(data.decode()))


def _summary(snapshot: VhostSnapshot, placement: Placement) -> npt.NDArray[np.void]:
    path = f"{snapshot.root}/{paths.PERSISTENT_FOLDER}/{paths.SUMMARY_FILE}"
    old = ets_dump.decode_summary(read_table(path)) if snapshot.locations.clean else _empty_files(placement)
    new = np.array([(number, size, size) for number, size in placement.file_sizes.items()], ets_dump.SUMMARY_ROW)
    return np.sort(np.concatenate([old, new]), order="file")


def _empty_files(placement: Placement) -> npt.NDArray[np.void]:
    """Rows of the files without records that a new store has below its first written one."""
    first = min(placement.file_sizes, default=1)
    return np.array([(number, 0, 0) for number in range(first)], ets_dump.SUMMARY_ROW)


def _terms(snapshot: VhostSnapshot, placement: Placement, priorities: Mapping[bytes, int]) -> dict[str, QueueTerms]:
    found = dict(snapshot.terms)
    vhost = snapshot.vhost.encode()
    for directory, queue in placement.queues.items():
        found[directory] = _with(found.get(directory) or _new(directory, queue.version), queue)
        most = priorities.get(queue.name)
        for priority in range(most + 1) if most is not None else ():
            sibling = paths.queue_directory(vhost, queue.name, priority)
            found.setdefault(sibling, _new(sibling, queue.version))
    return found


def _new(directory: str, version: int) -> QueueTerms:
    return QueueTerms(directory, version, {}, 0, 0, secrets.token_bytes(16), 0, 0)


def _with(terms: QueueTerms, queue: PlacedQueue) -> QueueTerms:
    """The terms with the new segments. Undelivered messages stay undelivered: the new messages come after them."""
    if not queue.segments:
        return terms
    last = max(queue.segments)
    return replace(
        terms,
        segments={**(terms.segments or {}), **{number: count for number, (count, _) in queue.segments.items()}},
        next_sequence_id=last * queue.segment_size + queue.segments[last][0],
        persistent_count=terms.persistent_count + sum(count for count, _ in queue.segments.values()),
        persistent_bytes=terms.persistent_bytes + sum(size for _, size in queue.segments.values()),
        client=terms.client if terms.client is not None else secrets.token_bytes(16),
    )
