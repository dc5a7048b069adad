"""Keeps recovery verdicts between processes, in small files outside of the stores.

A kept verdict is returned only if nothing has changed: device, inode, length and times of each file, the other state of
the directory, and the code that found the verdict. Comparing the bytes around its end belongs to `recovery_cache`. A
verdict file that cannot be read, written or understood is ignored. Source: docs/recovery.md "What is cached".
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage_core.files import system
from storage_core.files.small_file import names_in, read_whole
from storage_core.files.stamp import Stamp
from storage_core.formats.rocketmq.record_walk import Stop
from storage_core.rocketmq.disk.directory import Listing
from storage_core.rocketmq.recovery.directory_cache import SETTLED_NS
from storage_core.rocketmq.recovery.dispatch import QueueTail
from storage_core.rocketmq.recovery.queue_scan import StaleEntries
from storage_core.rocketmq.recovery.verdict import BatchTail, QueueVerdict, Replay, Rules, Verdict
from storage_core.store import QueueKey

FOLDER = "mqstore"
SUFFIX = ".verdict"
MOST_FILES = 200
LARGEST_FILE = 32 << 20

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE = ("rocketmq/recovery", "rocketmq/disk", "formats", "formats/rocketmq", "files")


@dataclass(frozen=True)
class KeptVerdict:
    """A verdict that was found on the same files, and the digest of the bytes around its end."""

    verdict: Verdict
    around_end: str


def load(listing: Listing, rules: Rules | None) -> KeptVerdict | None:
    """The verdict that was kept for these files; None if there is none."""
    folder = _folder()
    if folder is None:
        return None
    try:
        path = _path(folder, listing, rules)
        if not system.is_own(path):
            return None
        digest, _, text = (read_whole(path) or b"").partition(b"\n")
        if digest.decode() != _digest(text):
            return None
        content = json.loads(text)
        if content["files"] != _files(listing, rules):
            return None
        return KeptVerdict(_verdict(content["verdict"]), content["around_end"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def save(listing: Listing, rules: Rules | None, verdict: Verdict, around_end: str) -> None:
    """Keeps a verdict for the next process, unless a file changed so recently that its next change might not show."""
    folder, files = _folder(), _files(listing, rules)
    if folder is None or files is None or not _is_settled(listing):
        return
    content = {"files": files, "around_end": around_end, "verdict": _as_json(verdict)}
    text = json.dumps(content, separators=(",", ":"), default=_stale_as_json).encode()
    if len(text) > LARGEST_FILE:
        return
    with suppress(OSError):
        system.make_folder(folder)
        _replace(_path(folder, listing, rules), _digest(text).encode() + b"\n" + text)
        _drop_oldest(folder)


def digest_of(parts: tuple[bytes, ...]) -> str:
    """A digest of byte strings, each with its length."""
    return _digest(b"".join(len(part).to_bytes(8, "big") + part for part in parts))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _folder() -> str | None:
    """`mqstore` in the user's cache folder, as defined by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.environ.get("HOME", "")
        base = os.path.join(home, ".cache") if os.path.isabs(home) else ""
    return os.path.join(base, FOLDER) if base else None


def _path(folder: str, listing: Listing, rules: Rules | None) -> str:
    log_folder = listing.log.files[0].path.rpartition("/")[0] if listing.log.files else ""
    return os.path.join(folder, _digest(repr((listing.root, log_folder, rules)).encode())[:40] + SUFFIX)


def _files(listing: Listing, rules: Rules | None) -> str | None:
    """A digest of all that a verdict depends on except the bytes; None if the code has no files, as in an archive."""
    code = tuple(_code())
    if not code:
        return None
    return _digest(repr((code, listing.root, rules, listing.signature)).encode("utf-8", "surrogatepass"))


def _code() -> Iterator[tuple[str, Stamp]]:
    """The modules that find verdicts, with their stamps: another version of the package may find another verdict."""
    for folder in _CODE:
        for name in names_in(os.path.join(_PACKAGE, folder)):
            if name.endswith(".py"):
                path = os.path.join(_PACKAGE, folder, name)
                yield path, system.stamp(path)


def _is_settled(listing: Listing) -> bool:
    newest_ns = time.time_ns() - SETTLED_NS
    chains = [listing.log, *(queue.chain for queue in listing.queues.values()), *listing.batch_queues.values()]
    return all(max(file.stamp.mtime_ns, file.stamp.ctime_ns) <= newest_ns for chain in chains for file in chain.files)


def _replace(path: str, data: bytes) -> None:
    """Replaces a whole file in one step. If a power failure leaves it incomplete, its digest is wrong."""
    aside = f"{path}.{os.getpid()}"
    descriptor = system.open_write(aside, create=True)
    try:
        system.pwrite(descriptor, data, 0)
    finally:
        system.close(descriptor)
    system.rename(aside, path)


def _drop_oldest(folder: str) -> None:
    found = sorted((entry for entry in system.entries(folder)), key=lambda entry: entry.stamp.mtime_ns)
    for entry in found[:-MOST_FILES]:
        system.unlink(os.path.join(folder, entry.name))


# -- a verdict as JSON


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "rules": verdict.rules.value,
        "log": [verdict.log_start, verdict.log_end, verdict.reason.value, verdict.entries_per_file, *verdict.unlisted],
        "queues": [[*key, *vars(bounds).values()] for key, bounds in verdict.queues.items()],
        "replays": [
            [replay.start, replay.stop, _tails_as_json(replay.tails), sorted(replay.void)] for replay in verdict.replays
        ],
        "batches": [[*key, *vars(tail).values()] for key, tail in verdict.batches.items()],
        "batch_topics": sorted(verdict.batch_topics),
        "stated_batch_topics": None if verdict.stated_batch_topics is None else sorted(verdict.stated_batch_topics),
        "listed_batches": [[*key, address] for key, address in verdict.listed_batches.items()],
    }


def _stale_as_json(stale: StaleEntries) -> list[int]:
    return [*vars(stale).values()]


def _tails_as_json(tails: Mapping[QueueKey, QueueTail]) -> list[list[Any]]:
    return [[*key, *vars(tail).values()] for key, tail in tails.items()]


def _verdict(content: Mapping[str, Any]) -> Verdict:
    log_start, log_end, reason, entries_per_file, first, stop = content["log"]
    queues = {
        (topic, queue_id): QueueVerdict(
            disk_stop, stop, filler, first, None if head is None else (*head,), last, stale and StaleEntries(*stale)
        )
        for topic, queue_id, disk_stop, stop, filler, first, head, last, stale in content["queues"]
    }
    replays = tuple(
        Replay(
            start,
            stop,
            {(topic, queue_id): QueueTail(*tail) for topic, queue_id, *tail in tails},
            frozenset((topic, queue_id) for topic, queue_id in void),
        )
        for start, stop, tails, void in content["replays"]
    )
    batches = {(topic, queue_id): BatchTail(*tail) for topic, queue_id, *tail in content["batches"]}
    stated = content["stated_batch_topics"]
    return Verdict(
        Rules(content["rules"]), log_start, log_end, queues, replays, Stop(reason), entries_per_file, (first, stop),
        batches, frozenset(content["batch_topics"]),
        {(topic, queue_id): address for topic, queue_id, address in content["listed_batches"]},
        None if stated is None else frozenset(stated),
    )  # fmt: skip
