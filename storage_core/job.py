"""The common part of the commit protocol: staging folders and their owners, the intent, the marks of finished jobs.

The engines define what is staged, what an intent means and how it is published. Source of the rules:
commit-protocol.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from storage_core.errors import MqStoreError, shorten
from storage_core.files import system
from storage_core.files.small_file import names_in, read_whole, remove_empty_folder, remove_file, write_whole
from storage_core.store import StagedFile, StagedPart

FOLDER = ".mqstore"
OTHER_HOST_S = 24 * 3600  # also another container, and this machine before a reboot
# For a folder without an owner note: its owner is about to write it, or died before or after that.
NO_OWNER_S = 60
# A query that is absent for longer, while this many others ran, is assumed never to come back.
MOST_MARKS, MARK_LIFE_S = 1000, 30 * 24 * 3600
MOST_TRIES = 100
OWNER = "owner.json"
ASIDE = ".dropped"
MANIFEST, COPY_NOTE, COPYING = "manifest.json", "copy.json", "copying"
SPARK_WORKERS = (b"pyspark.daemon", b"pyspark/daemon.py", b"pyspark.worker", b"pyspark.sql.worker")

Intent = dict[str, Any]


@dataclass(frozen=True)
class JobFolder:
    """The paths in `.mqstore` of one store directory."""

    root: str

    @property
    def folder(self) -> str:
        """`.mqstore`."""
        return os.path.join(self.root, FOLDER)

    @property
    def lock(self) -> str:
        """The lock that mqstore's writers hold."""
        return os.path.join(self.folder, "lock")

    @property
    def intent(self) -> str:
        """What a job that passed its commit point is going to do."""
        return os.path.join(self.folder, "intent.json")

    @property
    def draft(self) -> str:
        """What a job writes before its commit point; the commit renames it to the intent."""
        return os.path.join(self.folder, "draft.json")

    @property
    def state(self) -> str:
        """What the last finished job left behind."""
        return os.path.join(self.folder, "state.json")

    @property
    def cut(self) -> str:
        """Where the bytes are kept that recovery cut from files of the store."""
        return os.path.join(self.folder, "cut")

    @property
    def manifest(self) -> str:
        """What a finished copy in object storage holds: names, sizes and checksums."""
        return os.path.join(self.folder, MANIFEST)

    @property
    def copy_note(self) -> str:
        """The note that a copy writes when it begins; without a manifest beside it, the copy is unfinished."""
        return os.path.join(self.folder, COPY_NOTE)

    @property
    def copying(self) -> str:
        """Where the files of a copy are kept until all of them have arrived."""
        return os.path.join(self.folder, COPYING)

    def staging(self, job: str = "") -> str:
        """The staging folder of a job, or the parent of all staging folders."""
        return os.path.join(self.folder, "staging", job) if job else os.path.join(self.folder, "staging")

    def mark(self, query: str) -> str:
        """The file that records which batch of a query, or version of an application, was written last."""
        name = hashlib.sha256(query.encode()).hexdigest()[:32]
        return os.path.join(self.folder, "queries", name)


def new_job_id() -> str:
    """A unique name for a job."""
    return f"{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def check_rights(folders: Iterable[str]) -> None:
    """Raises PermissionError if this process may not change one of the folders or, if it is missing, create it.

    Called before a commit point, so that no step after it lacks a right.
    """
    for folder in sorted(set(folders)):
        while not system.exists(folder):
            folder = os.path.dirname(folder)
        system.check_may_change(folder)


# -- staging


def missing_folders(root: str) -> tuple[str, ...]:
    """A store's directory and those of its parents that do not exist, the deepest first."""
    missing = []
    while root and not system.exists(root):
        missing.append(root)
        root = os.path.dirname(root)
    return tuple(missing)


def make_root(root: str) -> None:
    """Creates a store's directory and its missing parents, so that each of them survives a power failure."""
    missing = missing_folders(root)
    try:
        if missing:
            system.make_folder(missing[0])
        for path in missing:
            system.sync_folder(os.path.dirname(path) or ".")
    except BaseException:
        for path in missing:
            with suppress(OSError):
                system.remove_folder(path)
        raise


def open_staging(job_folder: JobFolder, job: str, application: str = "", made: Sequence[str] = ()) -> str:
    """Creates the staging folder of a job with its owner note. Returns its path. `made`: the store's directory and its
    parents, if the job makes them.
    """
    folder = job_folder.staging(job)
    _make_staging(job_folder.root, folder)
    try:
        note_owner(folder, application, made)
    except BaseException:
        drop_staging(job_folder, job)
        raise
    return folder


def _make_staging(root: str, folder: str) -> None:
    for left in reversed(range(MOST_TRIES)):
        try:
            make_root(root)
            system.make_folder(folder, exist_ok=False)
            break
        except FileNotFoundError:  # another job ended between two steps, and removed the empty folders above
            if not left:
                raise


def note_owner(folder: str, application: str = "", made: Sequence[str] = ()) -> None:
    """Records the owner of the folder: the process that lives as long as the job, which for Spark is the driver's."""
    note = {**_session(), "application": application, "made": list(made)}
    write_whole(os.path.join(folder, OWNER), json.dumps(note).encode())


def _session() -> dict[str, Any]:
    pid = system.session_process(SPARK_WORKERS)
    return {
        "host": socket.gethostname(), "space": system.process_space(), "pid": pid, "start": system.process_start(pid),
    }  # fmt: skip


def sync_staged(job_folder: JobFolder, job: str) -> None:
    """Syncs all folders that lead to what a job staged, and those inside it: tasks sync only their files, and an intent
    must never survive files that it refers to.
    """
    _sync_below(job_folder.staging(job))
    for folder in (job_folder.staging(), job_folder.folder, job_folder.root, os.path.dirname(job_folder.root) or "."):
        system.sync_folder(folder)


def _sync_below(folder: str) -> None:
    for entry in system.entries(folder):
        if entry.is_directory:
            _sync_below(os.path.join(folder, entry.name))
    system.sync_folder(folder)


def drop_staging(job_folder: JobFolder, job: str) -> None:
    """Removes what a job staged; does nothing if it does not exist."""
    drop_written(job_folder.staging(job))
    remove_empty_folder(job_folder.staging())


def drop_staged_by(root: str, application: str) -> None:
    """Removes what an application of this session staged and did not commit, and the directories that only this made;
    to be called when it has ended.
    """
    job_folder, owner = JobFolder(root), {**_session(), "application": application}
    committed = (read_json(job_folder.intent) or {}).get("job")
    for job in names_in(job_folder.staging()):
        noted = read_json(os.path.join(job_folder.staging(job), OWNER)) or {}
        if job != committed and noted.items() >= owner.items():
            drop_staging(job_folder, job)
            remove_made(job_folder, noted.get("made", ()))


def remove_made(job_folder: JobFolder, made: Sequence[str], inside: Sequence[str] = ()) -> None:
    """Removes the directories `made` by a job, its folder and those `inside` the store first.

    If another job has begun there, or a lock was taken, they are not empty and stay.
    """
    for folder in (job_folder.folder, *inside, *made) if made else ():
        remove_empty_folder(folder)


def drop_orphans(job_folder: JobFolder, keep: set[str]) -> None:
    """Removes staging folders whose owner is dead. The caller must hold the lock; `keep` names jobs to keep."""
    for job in names_in(job_folder.staging()):
        if job not in keep and is_orphan(job_folder.staging(job)):
            drop_staging(job_folder, job)


def is_orphan(folder: str) -> bool:
    """Whether the owner of a folder is dead. For a process that is not visible from here (another machine, another
    container, an earlier boot of this machine) only the folder's age decides.
    """
    noted = read_whole(os.path.join(folder, OWNER))
    try:
        age_s = time.time() - system.stat(folder).stamp.mtime_ns / 1e9
    except FileNotFoundError:  # its job has finished meanwhile
        return False
    try:
        owner = json.loads(noted or b"")
    except json.JSONDecodeError:
        # A folder that was set aside is finished with, whoever was removing it; its note is removed last.
        return folder.endswith(ASIDE) or age_s > NO_OWNER_S
    if (owner.get("host"), owner.get("space")) != (socket.gethostname(), system.process_space()):
        return age_s > OTHER_HOST_S
    # Without a start time, the owner was already dead when it was recorded: a worker briefly outlives its session.
    return owner.get("start") is None or owner["start"] != system.process_start(int(owner.get("pid", 0)))


def drop_written(folder: str) -> None:
    """`drop_tree` for a folder into which a task may still write: it is renamed first, so nothing is added to it."""
    aside = folder + ASIDE
    drop_tree(aside)
    try:
        system.rename(folder, aside)
    except FileNotFoundError:
        return
    drop_tree(aside)


def drop_tree(folder: str) -> None:
    """Removes a folder with everything in it, the owner note last; does nothing if it does not exist."""
    try:
        found = sorted(system.entries(folder), key=lambda entry: entry.name == OWNER)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        path = os.path.join(folder, entry.name)
        if entry.is_directory:
            drop_tree(path)
        else:
            remove_file(path)
    with suppress(FileNotFoundError):
        system.remove_folder(folder)


def check_staged(job_folder: JobFolder, job: str, parts: list[StagedPart], crc: bool) -> None:
    """Raises MqStoreError, one line, when a staged file is missing or is not what its task wrote."""
    for part in parts:
        for file in part.files:
            path = os.path.join(job_folder.staging(job), file.name)
            try:
                size = system.stat(path).size
            except FileNotFoundError:
                size = -1
            if size != file.size or (crc and _crc(path) != file.crc):
                raise MqStoreError(
                    f"{path} is not what a task staged ({file.size} bytes); all tasks must write to one file system: "
                    "use a path that every machine shares"
                )


def _crc(path: str) -> int:
    descriptor, position, value = system.open_read(path), 0, 0
    try:
        while data := system.pread(descriptor, 8 << 20, position):
            value = crc32(data, value)
            position += len(data)
    finally:
        system.close(descriptor)
    return value


def part_to_json(part: StagedPart) -> dict[str, Any]:
    """A part in the form that an intent stores."""
    files = [[file.name, file.size, file.crc] for file in part.files]
    return {"partition": part.partition, "rows": part.rows, "files": files, "detail": dict(part.detail)}


def part_from_json(noted: dict[str, Any]) -> StagedPart:
    """The part that `part_to_json` encoded."""
    files = tuple(StagedFile(name, size, crc) for name, size, crc in noted["files"])
    return StagedPart(noted["partition"], noted["rows"], files, noted["detail"])


# -- intent, state, marks


def read_json(path: str) -> dict[str, Any] | None:
    """A small JSON object from `.mqstore`; None if it is missing or invalid (a crash cannot leave half of one)."""
    data = read_whole(path)
    if not data:
        return None
    try:
        found = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: str, value: dict[str, Any]) -> None:
    """Writes a JSON object in one atomic step that survives a power failure."""
    write_whole(path, json.dumps(value, separators=(",", ":")).encode())


def pending_intent(root: str) -> Intent | None:
    """The intent, or before that the draft, of an unfinished job; None if there is none.

    A reader that sees one behaves as if the job did not exist. The intent of a finished job is not returned.
    """
    job_folder = JobFolder(root)
    # The draft first: if it is renamed meanwhile, it is found under its new name.
    draft = read_json(job_folder.draft)
    intent = read_json(job_folder.intent) or draft
    if intent is None:
        return None
    state = read_json(job_folder.state)
    return None if state is not None and state.get("job") == intent["job"] else intent


def is_inside(name: str) -> bool:
    """Whether a name, relative to a folder, is that of something in it."""
    return "\0" not in name and not {"", ".", ".."}.intersection(name.split("/"))


def refuse_outside(root: str, names: Iterable[str]) -> None:
    """Raises MqStoreError for a path in the intent of a store that leads out of it: the store may come from anywhere.

    Source: commit-protocol.md 8.
    """
    for name in names:
        if not is_inside(name):
            raise MqStoreError(
                f"{root}: the intent in {FOLDER} names {shorten(repr(name))}, which is not in the store; nothing was "
                f"changed: remove {JobFolder(root).folder}, or get the store from where it was written"
            )


def is_marked(root: str, query: str, version: int) -> bool:
    """Whether this version of a query (a batch, a transaction) was already written."""
    noted = read_json(JobFolder(root).mark(query))
    return noted is not None and noted["query"] == query and int(noted["version"]) >= version


def set_mark(root: str, query: str, version: int) -> None:
    """Records that this version and all before it were written. A query's first mark prunes those of others."""
    path = JobFolder(root).mark(query)
    folder = os.path.dirname(path)
    if not system.exists(folder):
        system.make_folder(folder)
        for above in (os.path.dirname(folder), root):
            system.sync_folder(above)
    if not is_marked(root, query, version):
        if not system.exists(path):
            _prune_marks(folder)
        write_json(path, {"query": query, "version": version})


def _prune_marks(folder: str) -> None:
    """Removes the oldest marks if there are too many, but none that was written in the last thirty days."""
    marks = sorted(system.entries(folder), key=lambda entry: entry.stamp.mtime_ns, reverse=True)
    for entry in marks[MOST_MARKS - 1 :]:
        if time.time() - entry.stamp.mtime_ns / 1e9 > MARK_LIFE_S:
            remove_file(os.path.join(folder, entry.name))
