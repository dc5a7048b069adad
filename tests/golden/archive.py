"""Unpacks the archives of real stores, preserving holes and times. Their content is known only to the tests."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent


def names(engine: str = "rocketmq") -> list[str]:
    """The fixtures of an engine, sorted."""
    return sorted(path.name[: -len(".tar.gz")] for path in (GOLDEN / engine).glob("*.tar.gz"))


def unpack(name: str, target: Path, engine: str = "rocketmq") -> Path:
    """Unpacks fixture `name` below `target` and returns its directory. Files keep their holes, files and folders their
    times.
    """
    with tarfile.open(GOLDEN / engine / f"{name}.tar.gz") as archive:
        # Python before 3.11.4 (Debian 12) does not support `filter`, and extracts as the filter "tar" does.
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(target)
    return target / "store"


def info(name: str, engine: str = "rocketmq") -> dict[str, Any]:
    """The fixture's description: version, settings, counts."""
    found: dict[str, Any] = json.loads((GOLDEN / engine / f"{name}.json").read_text(encoding="utf-8"))
    return found


def truth(name: str, engine: str = "rocketmq") -> list[dict[str, Any]]:
    """What the real store serves, one dictionary per message, in the order of the truth file."""
    with gzip.open(GOLDEN / engine / f"{name}.truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def queries(name: str, engine: str = "rocketmq") -> list[dict[str, Any]]:
    """The queries sent to the real system, with its answers."""
    text = (GOLDEN / engine / f"{name}.queries.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def fingerprint(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Modification time, length and sha256 of everything below `directory`: equal before and after a read."""
    seen: dict[str, tuple[int, int, str]] = {}
    for folder, _, files in os.walk(directory):
        for path in [Path(folder), *(Path(folder) / file for file in files)]:
            found = path.lstat()
            contents = os.readlink if path.is_symlink() else partial(_sha256, size=found.st_size)
            digest = "" if path.is_dir() else contents(path)
            seen[str(path.relative_to(directory))] = (found.st_mtime_ns, 0 if path.is_dir() else found.st_size, digest)
    return seen


def _sha256(path: Path, size: int) -> str:
    """The sha256 of the parts of a file between holes, each with its position: a 1 GiB sparse file costs nothing."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        position = 0
        while position < size:
            try:
                start = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError:
                break
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            digest.update(b"%d:" % start)
            digest.update(os.pread(descriptor, position - start, start))
    finally:
        os.close(descriptor)
    return digest.hexdigest()
