"""What becomes of a committed job that was stopped, and a node ran before it was carried out: other numbers for its
files whose names are taken.

The decision is in the intent before a file is moved, so that it holds however often the job is stopped.
Source: commit-protocol.md 15, rabbitmq.md 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from storage_core.files import system
from storage_core.files.small_file import names_in, write_whole
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.job import Intent, JobFolder
from storage_core.rabbitmq.disk import unfinished
from storage_core.rabbitmq.disk.span_reader import read_file

MAGICS = {paths.INDEX2_SUFFIX: queue_v2.INDEX_MAGIC, paths.STORE2_SUFFIX: queue_v2.STORE_MAGIC}
Move = tuple[str, str]
KEPT = (paths.MESSAGE_SUFFIX, paths.STORE2_SUFFIX, paths.STUB_FILE)
"""Files that keep their name in staging until the job is done: a node that starts before removes what no index names,
and queues that it does not know.
"""
SEGMENTS = (paths.SEGMENT_SUFFIX, *MAGICS)
NUMBERED = (paths.MESSAGE_SUFFIX, *SEGMENTS)


def highest_number(names: Iterable[str]) -> int:
    """The highest number of a message file or segment, -1 when there is none."""
    numbers = (paths.number_of(name, suffix) for name in names for suffix in NUMBERED)
    return max((number for number in numbers if number is not None), default=-1)


def give_number(path: str, target: str) -> None:
    """Makes the header of a staged file, where it has one, that of the number in the name `target`."""
    name = target.rpartition("/")[2]
    suffix = paths.suffix_of(name)
    number = paths.number_of(name, suffix)
    if suffix not in MAGICS or number is None:
        return
    descriptor = system.open_write(path)
    try:
        system.pwrite(descriptor, queue_v2.encode_header(MAGICS[suffix], number), 0)
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def spare_of(moves: Iterable[Move], names: Iterable[str] = ()) -> str | None:
    """An empty message file above those of a job and the other `names` of its folder, there while they are moved: a
    node that starts then cuts its last file after the last message that an index names. None where the job has none.
    """
    planned = [target for _, target in moves if paths.suffix_of(target) == paths.MESSAGE_SUFFIX]
    if not planned:
        return None
    number = highest_number([*(target.rpartition("/")[2] for target in planned), *names]) + 1
    return f"{paths.PERSISTENT_FOLDER}/{number}{paths.MESSAGE_SUFFIX}"


def waiting(root: str, staging: str, moves: Iterable[Move]) -> list[Move]:
    """The moves that are still to be done; of a file that keeps its staged name, those without the other."""
    there = [(source, target) for source, target in moves if system.exists(f"{staging}/{source}")]
    return [(source, target) for source, target in there if not _is_one_file(f"{staging}/{source}", f"{root}/{target}")]


def _is_one_file(path: str, other: str) -> bool:
    """Whether two names are of one file, or, as in a copy of a store, of equal ones."""
    stamps = system.stamp(path), system.stamp(other)
    if stamps[0].identity == stamps[1].identity:
        return True
    return system.exists(other) and stamps[0].size == stamps[1].size and read_file(path) == read_file(other)


def node_ran(root: str, intent: Intent) -> bool:
    """Whether a node ran on the store after the commit point of a job that is not done: a name that waits for a file is
    taken, the spare holds something, or there is a clean file that is neither the job's nor that of the stop before it.
    """
    staging, spare = JobFolder(root).staging(intent["job"]), intent.get("spare")
    if spare is not None and system.exists(f"{root}/{spare}") and system.stat(f"{root}/{spare}").size:
        return True
    if any(system.exists(f"{root}/{target}") for _, target in waiting(root, staging, intent["moves"])):
        return True
    return any(not _is_of_before(root, staging, path) for _, path in waiting(root, staging, intent["cleanMoves"]))


def _is_of_before(root: str, staging: str, path: str) -> bool:
    """Whether a clean file is missing, or what the job copied aside."""
    if not system.exists(f"{root}/{path}"):
        return True
    kept = f"{staging}/{unfinished.BEFORE}/{path.rpartition('/')[2]}"
    return system.exists(kept) and read_file(kept) == read_file(f"{root}/{path}")


def after_a_node(root: str, intent: Intent) -> Intent:
    """The intent with free numbers for what waits under names that are taken, and for the segments that wait after it
    in a queue, and without clean files: the store is not clean any more.

    A segment of version 2 keeps both of its files under one number: one whose `.qs` alone is in place gets a copy of
    that, to which a node at most appended. Other files whose names are taken are left out.
    """
    staging = JobFolder(root).staging(intent["job"])
    left = waiting(root, staging, intent["moves"])
    waits = {_stem(target) for _, target in left}
    taken = {_stem(target) for _, target in left if system.exists(f"{root}/{target}")}
    moves, numbers = [], dict[str, int]()
    for source, target in intent["moves"]:
        stem, folder, suffix = _stem(target), _folder(target), paths.suffix_of(target)
        follows = suffix in SEGMENTS and any(_folder(other) == folder for other in numbers)
        if stem not in waits or not (stem in taken or follows):
            moves.append((source, target))
            continue
        if suffix not in NUMBERED:
            continue
        if (source, target) not in left and system.exists(f"{root}/{target}"):
            write_whole(f"{staging}/{source}", read_file(f"{root}/{target}"))
        numbers.setdefault(stem, _free_number(root, folder, intent, numbers))
        moves.append((source, f"{folder}/{numbers[stem]}{suffix}"))
        give_number(f"{staging}/{source}", moves[-1][1])
    spare = spare_of(moves, names_in(f"{root}/{paths.PERSISTENT_FOLDER}"))
    return {**intent, "moves": moves, "cleanMoves": [], "spare": spare}


def _free_number(root: str, folder: str, intent: Intent, given: Mapping[str, int]) -> int:
    """A number that no file in a folder of the store has, that none is to get, and that was not `given` by stem."""
    planned = [target.rpartition("/")[2] for _, target in intent["moves"] if _folder(target) == folder]
    highest = highest_number([*planned, *names_in(f"{root}/{folder}")])
    return max([highest, *(number for stem, number in given.items() if _folder(stem) == folder)]) + 1


def _folder(target: str) -> str:
    return target.rpartition("/")[0]


def _stem(target: str) -> str:
    """A target without its suffix, which both files of a segment share; a name that is all suffix stays."""
    stem = target.rpartition(".")[0]
    return target if not stem or stem.endswith("/") else stem
