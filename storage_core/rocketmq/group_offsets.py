"""Sets the committed offsets of a consumer group by rewriting the offset file as a broker would.

Source of the rules: rocketmq.md 1.5, 5.2. The previous content is saved as `.bak`, as a broker does, unless it is
broken: in that case the `.bak` was read instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from storage_core.errors import MqStoreError
from storage_core.files import system
from storage_core.files.small_file import read_whole, write_whole
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.config_json import encode_offsets
from storage_core.rocketmq.disk.config_files import (
    config_problem,
    needed_config,
    offsets_file,
    refuse_offsets_in_rocksdb,
)
from storage_core.rocketmq.write.job import locked
from storage_core.store import QueueKey

WAIT_S = 5.0


def set_group_offsets(root: str, group: str, offsets: Mapping[QueueKey, int]) -> None:
    """Sets the next offset that a group reads from each given queue; the offsets of other queues are kept.

    Raises StoreLockedError while a broker runs, because it would overwrite the offsets with its own,
    UnsupportedFormatError if the broker keeps offsets in RocksDB, MqStoreError for a queue other than 0 of a group of
    light queues, and whatever reading the file raises.
    """
    folder = os.path.join(root, paths.CONFIG)
    advice = "does not write; reset them on the running broker with mqadmin resetOffsetByTime"
    refuse_offsets_in_rocksdb(root, advice)
    path = os.path.join(folder, name := offsets_file(root))
    try:
        with locked(root, WAIT_S):
            content = needed_config(root, name)
            changed = encode_offsets(_with_offsets(content, group, offsets))
            system.make_folder(folder)
            before = read_whole(path) if config_problem(path) is None else None
            if before is not None:
                write_whole(f"{path}.bak", before)
            write_whole(path, changed)
    except OSError as error:
        raise MqStoreError(f"{error.filename or path}: {error.strerror}; nothing was changed") from error


def _with_offsets(content: Mapping[str, Any], group: str, offsets: Mapping[QueueKey, int]) -> dict[str, Any]:
    known = content.get("lmqOffsetTable")
    if isinstance(known, dict) and group.startswith(paths.LIGHT_QUEUE_PREFIX):
        others = sorted(f"{topic}/{queue_id}" for topic, queue_id in offsets if queue_id)
        if others:
            raise MqStoreError(
                f"{group} is a group of light queues, which has one offset a topic, that of queue 0; leave {others[0]} "
                "out, and set queue 0 alone"
            )
        light = {f"{topic}@{group}": offset for (topic, _), offset in offsets.items()}
        return {**content, "lmqOffsetTable": {**known, **light}}
    table = content.get("offsetTable")
    changed = {name: dict(own) if isinstance(own, dict) else own
               for name, own in (table if isinstance(table, dict) else {}).items()}  # fmt: skip
    for (topic, queue_id), offset in offsets.items():
        changed.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    return {**content, "offsetTable": changed}
