"""What is left to do of an interrupted committed job, even if a node ran before the job was carried out.

The decision is written to the intent before any file is moved, so it holds however often the job is interrupted.
`publish` moves the files. Source: commit-protocol.md 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from storage_core.files import system
from storage_core.files.small_file import names_in, write_whole
from storage_core.formats.rabbitmq import paths
from storage_core.job import Intent, JobFolder
from storage_core.rabbitmq.disk import unfinished
from storage_core.rabbitmq.disk.span_reader import read_file
from storage_core.rabbitmq.write.file_numbers import NUMBERED, SEGMENTS, Move, give_number, highest_number, spare_of


def waiting(root: str, staging: str, moves: Iterable[Move]) -> list[Move]:
    """The moves that are still to be done; of files that keep their staged name, those not yet in place."""
    there = [(source, target) for source, target in moves if system.exists(f"{staging}/{source}")]
    return [(source, target) for source, target in there if not _is_one_file(f"{staging}/{source}", f"{root}/{target}")]


def _is_one_file(path: str, other: str) -> bool:
    """Whether two paths are the same file or, as in a copy of a store, files with equal contents."""
    stamps = system.stamp(path), system.stamp(other)
    if stamps[0].identity == stamps[1].identity:
        return True
    return system.exists(other) and stamps[0].size == stamps[1].size and read_file(path) == read_file(other)


def node_ran(root: str, intent: Intent) -> bool:
    """Whether a node ran on the store after the commit point of an unfinished job: the target name of a waiting file is
    taken, the spare is not empty, or a clean file exists that is neither the job's nor from the stop before it.
    """
    staging, spare = JobFolder(root).staging(intent["job"]), intent.get("spare")
    if spare is not None and system.exists(f"{root}/{spare}") and system.stat(f"{root}/{spare}").size:
        return True
    if any(system.exists(f"{root}/{target}") for _, target in waiting(root, staging, intent["moves"])):
        return True
    return any(not _is_of_before(root, staging, path) for _, path in waiting(root, staging, intent["cleanMoves"]))


def _is_of_before(root: str, staging: str, path: str) -> bool:
    """Whether a clean file is missing, or equals the one that the job copied aside."""
    if not system.exists(f"{root}/{path}"):
        return True
    saved = f"{staging}/{unfinished.BEFORE}/{path.rpartition('/')[2]}"
    return system.exists(saved) and read_file(saved) == read_file(f"{root}/{path}")


def after_a_node(root: str, intent: Intent) -> Intent:
    """The intent with free numbers for waiting files whose target names are taken, and for the segments that wait after
    them in a queue, and without clean files: the store is no longer clean.

    Both files of a version 2 segment keep the same number: a segment of which only the `.qs` is in place gets a copy of
    that file, to which a node at most appended. Other files whose names are taken are left out.
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


def _free_number(root: str, folder: str, intent: Intent, assigned: Mapping[str, int]) -> int:
    """A number that no file in a folder of the store has or is planned to get, and that is not `assigned` (by stem)."""
    planned = [target.rpartition("/")[2] for _, target in intent["moves"] if _folder(target) == folder]
    highest = highest_number([*planned, *names_in(f"{root}/{folder}")])
    return max([highest, *(number for stem, number in assigned.items() if _folder(stem) == folder)]) + 1


def _folder(target: str) -> str:
    return target.rpartition("/")[0]


def _stem(target: str) -> str:
    """A target without its suffix; both files of a segment share it. A name that is all suffix is kept whole."""
    stem = target.rpartition(".")[0]
    return target if not stem or stem.endswith("/") else stem
