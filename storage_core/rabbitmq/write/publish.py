"""Carries out a committed job: moves files from the staging folder into the store. Each step can be repeated.

`placement` decides where each file goes. Source: commit-protocol.md 15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_core import job as jobs
from storage_core.files import system
from storage_core.files.small_file import write_whole
from storage_core.formats.rabbitmq import paths
from storage_core.job import JobFolder
from storage_core.rabbitmq.write import redo

KEPT = (paths.MESSAGE_SUFFIX, paths.STORE2_SUFFIX, paths.STUB_FILE)
"""Files that keep their name in staging until the job is done: a node that starts earlier removes files that no index
names, and queues that it does not know.
"""


def check_rights(root: str, intent: Mapping[str, Any]) -> None:
    """Raises PermissionError for a folder in which an intent could not be carried out."""
    jobs.check_rights([root, *(f"{root}/{path}".rpartition("/")[0] for path in _changed(intent))])


def _changed(intent: Mapping[str, Any]) -> list[str]:
    """The paths below the store that an intent adds, replaces or removes."""
    targets = [target for kind in ("moves", "cleanMoves") for _, target in intent[kind]]
    spare = intent.get("spare")
    return [*targets, *intent["removes"], *([] if spare is None else [spare])]


def finish_pending(root: str) -> None:
    """Finishes an interrupted job that passed its commit point. The caller must hold the lock."""
    intent = jobs.pending_intent(root)
    if intent is not None:
        staged = [source for kind in ("moves", "cleanMoves") for source, _ in intent[kind]]
        jobs.refuse_outside(root, [intent["job"], *staged, *_changed(intent)])
        if redo.node_ran(root, intent):
            intent = redo.after_a_node(root, intent)
            jobs.write_json(JobFolder(root).intent, intent)
        carry_out(root, intent["job"], intent)
    elif system.exists(JobFolder(root).intent):
        system.unlink(JobFolder(root).intent)


def carry_out(root: str, job: str, intent: Mapping[str, Any]) -> None:
    """Carries out an intent from wherever it was interrupted; no node may have run since."""
    job_folder = JobFolder(root)
    staging = job_folder.staging(job)
    moves, clean_moves = (redo.waiting(root, staging, intent[kind]) for kind in ("moves", "cleanMoves"))
    spare = intent.get("spare")
    own = {target for _, target in intent["cleanMoves"]} - {target for _, target in clean_moves}
    for path in intent["removes"]:
        if path not in own and system.exists(f"{root}/{path}"):
            system.unlink(f"{root}/{path}")
    for folder in ("", paths.PERSISTENT_FOLDER):
        if system.exists(f"{root}/{folder}"):
            system.sync_folder(f"{root}/{folder}")
    for source, target in moves:
        if spare is not None and paths.suffix_of(target) == paths.MESSAGE_SUFFIX:
            _put_spare(f"{root}/{spare}")
        _move(f"{staging}/{source}", f"{root}/{target}")
    if spare is not None:
        _remove_spare(f"{root}/{spare}")
    for source, target in clean_moves:
        _move(f"{staging}/{source}", f"{root}/{target}")
    for folder in sorted({f"{staging}/{source}".rpartition("/")[0] for source, _ in (*moves, *clean_moves)}):
        system.sync_folder(folder)
    jobs.write_json(job_folder.state, {"job": job})
    system.unlink(job_folder.intent)
    jobs.drop_staging(job_folder, job)


def _put_spare(path: str) -> None:
    if not system.exists(path):
        _made_folder(path)
        write_whole(path, b"")


def _remove_spare(path: str) -> None:
    if system.exists(path) and not system.stat(path).size:
        system.unlink(path)
        system.sync_folder(path.rpartition("/")[0])


def _move(source: str, target: str) -> None:
    folder = _made_folder(target)
    if paths.suffix_of(target) not in KEPT or not system.link(source, target):
        system.rename(source, target)
    system.sync_folder(folder)


def _made_folder(path: str) -> str:
    """The folder of a path, created if it is missing."""
    folder = path.rpartition("/")[0]
    if not system.exists(folder):
        system.make_folder(folder)
        system.sync_folder(folder.rpartition("/")[0])
    return folder
