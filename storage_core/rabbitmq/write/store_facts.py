"""What a job must know about its store before it stages: plain data that is sent to every task.

Source: rabbitmq.md 8, docs/rabbitmq.md "Writing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.rabbitmq.disk import node
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index.segment_v2_reader import entry_count_in
from storage_core.rabbitmq.read.snapshot import VhostSnapshot


def known_versions(snapshot: VhostSnapshot) -> dict[str, int]:
    """Versions of a store's classic queues by directory: from their files, else from the terms of the last stop."""
    found = {name: terms.version for name, terms in snapshot.terms.items() if terms.segments is not None}
    return found | {directory.directory: directory.version for directory in snapshot.directories if directory.sizes}


@dataclass(frozen=True)
class StoreFacts:
    """`entry_count` is that of a version 1 segment, `own_entry_count` that of one of version 2. `versions` are those of
    existing queues, by directory; `wanted_versions` those that their `x-queue-version` names, by queue; any other new
    queue gets `new_version`. `other_types` are the types of the vhost's queues that are not classic, by queue, if the
    node's tables are there.
    """

    root: str
    vhost: str
    entry_count: int
    settings: Settings
    versions: Mapping[str, int] = field(default_factory=dict)
    wanted_versions: Mapping[bytes, int] = field(default_factory=dict)
    new_version: int = 1
    own_entry_count: int = queue_v2.SEGMENT_ENTRY_COUNT
    other_types: Mapping[bytes, str] = field(default_factory=dict)

    def version_of(self, queue: bytes, priority: int | None) -> int:
        """The version in which messages of a queue are written."""
        siblings = () if priority is None else range(paths.MAX_PRIORITY + 1)
        for level in (priority, *siblings):
            found = self.versions.get(paths.queue_directory(self.vhost.encode(), queue, level))
            if found is not None:
                return found
        return self.wanted_versions.get(queue, self.new_version)

    def segment_size(self, version: int) -> int:
        """Number of entries per segment in a queue of this version."""
        return self.own_entry_count if version == 2 else self.entry_count


def facts_of(
    root: str,
    vhost: str,
    entry_count: int,
    settings: Settings,
    snapshot: VhostSnapshot | None,
    wanted_versions: Mapping[bytes, int],
) -> StoreFacts:
    """The facts of a store from its `snapshot`, None for a new one. New queues get version 2 if all others have it."""
    versions = {} if snapshot is None else known_versions(snapshot)
    new_version = 2 if set(versions.values()) == {2} else 1
    other_types = {
        queue.name.encode(): queue.kind
        for queue in node.declared_queues(root).values()
        if queue.vhost == vhost and queue.kind != "classic"
    }
    own = _own_entry_count(root, snapshot) or settings.classic_queue_index_v2_segment_entry_count
    return StoreFacts(root, vhost, entry_count, settings, versions, wanted_versions, new_version, own, other_types)


def _own_entry_count(root: str, snapshot: VhostSnapshot | None) -> int | None:
    """The entries of a version 2 segment as the store's node has them; None if no header shows it."""
    for directory in snapshot.directories if snapshot is not None else ():
        folder = f"{root}/{paths.QUEUES_FOLDER}/{directory.directory}"
        if directory.version == 2 and (count := entry_count_in(folder, directory.sizes)) is not None:
            return count
    return None
