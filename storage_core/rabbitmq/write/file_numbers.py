"""The numbers of a job's files: the highest existing one, the header that contains one, the spare above them.

Source: commit-protocol.md 15, rabbitmq.md 8.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_core.files import system
from storage_core.files.small_file import read_at
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2

MAGICS = {paths.INDEX2_SUFFIX: queue_v2.INDEX_MAGIC, paths.STORE2_SUFFIX: queue_v2.STORE_MAGIC}
SEGMENTS = (paths.SEGMENT_SUFFIX, *MAGICS)
NUMBERED = (paths.MESSAGE_SUFFIX, *SEGMENTS)
Move = tuple[str, str]
"""The source in staging and the target in the store."""


def highest_number(names: Iterable[str]) -> int:
    """The highest number of a message file or segment, -1 if there is none."""
    numbers = (paths.number_of(name, suffix) for name in names for suffix in NUMBERED)
    return max((number for number in numbers if number is not None), default=-1)


def give_number(path: str, target: str) -> None:
    """Writes the number from the name `target` into the header of a staged file, if the file has one."""
    name = target.rpartition("/")[2]
    suffix = paths.suffix_of(name)
    number = paths.number_of(name, suffix)
    if suffix not in MAGICS or number is None:
        return
    count = queue_v2.entry_count_of(read_at(path, queue_v2.HEADER.size))
    descriptor = system.open_write(path)
    try:
        header = queue_v2.encode_header(MAGICS[suffix], number, count or queue_v2.SEGMENT_ENTRY_COUNT)
        system.pwrite(descriptor, header, 0)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def spare_of(moves: Iterable[Move], names: Iterable[str] = ()) -> str | None:
    """The path of the spare: an empty message file above those of a job and the other `names` of its folder, which
    exists while files are moved. A node that starts then cuts its last file after the last message that an index names.
    None if the job has no message files.
    """
    planned = [target for _, target in moves if paths.suffix_of(target) == paths.MESSAGE_SUFFIX]
    if not planned:
        return None
    number = highest_number([*(target.rpartition("/")[2] for target in planned), *names]) + 1
    return f"{paths.PERSISTENT_FOLDER}/{number}{paths.MESSAGE_SUFFIX}"
