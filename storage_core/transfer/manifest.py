"""What a copy in object storage holds: names, lengths, times and checksums, written after everything else.

A copy first writes a note that it has begun (`.mqstore/copy.json`), and last what it holds (`.mqstore/manifest.json`):
with the first but without the second it is unfinished, and nothing reads it. Source: docs/object-storage.md "Copies".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_core.errors import MqStoreError, StoreNotFoundError
from storage_core.files import system
from storage_core.files.small_file import read_whole
from storage_core.job import FOLDER, MANIFEST, JobFolder, is_inside, read_json

PIECE_SIZE = 8 << 20
"""Size in bytes of a piece of a file, which has its own checksum; the last piece may be shorter."""
FORMAT = 1
MANIFEST_NAME = f"{FOLDER}/{MANIFEST}"


@dataclass(frozen=True)
class ManifestFile:
    """A file: its length in bytes, its modification time, and the CRC-32 of each of its pieces."""

    size: int
    modified_ns: int
    crcs: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """The files of a copy by name, and its empty folders."""

    files: Mapping[str, ManifestFile]
    folders: Sequence[str]

    def encoded(self) -> bytes:
        """The manifest as JSON."""
        files = {name: [file.size, file.modified_ns, list(file.crcs)] for name, file in self.files.items()}
        noted = {"format": FORMAT, "pieceSize": PIECE_SIZE, "files": files, "folders": list(self.folders)}
        return json.dumps(noted, separators=(",", ":"), sort_keys=True).encode()


def read_manifest(root: str) -> Manifest | None:
    """The manifest of a copy; None if there is none. Raises MqStoreError for an invalid one, and for a later format."""
    path = JobFolder(root).manifest
    data = read_whole(path)
    if data is None:
        return None
    try:
        noted: dict[str, Any] = json.loads(data)
        if (noted["format"], noted["pieceSize"]) != (FORMAT, PIECE_SIZE):
            raise MqStoreError(
                f"{path}: a manifest of format {noted['format']}; this version of mqstore reads {FORMAT}"
            )
        files = {
            str(name): ManifestFile(int(size), int(modified_ns), tuple(crcs))
            for name, (size, modified_ns, crcs) in noted["files"].items()
        }
        folders = tuple(map(str, noted["folders"]))
        if any(len(file.crcs) != len(list(pieces_of(file.size))) for file in files.values()):
            raise ValueError(path)
        if not all(map(is_inside, folders)):
            raise ValueError(path)
        return Manifest(files, folders)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MqStoreError(f"{path}: it is not a manifest; copy the store again, or remove it") from None


def pieces_of(size: int) -> Iterator[tuple[int, int]]:
    """The pieces [start, stop) of a file; an empty file has one empty piece."""
    for start in range(0, max(size, 1), PIECE_SIZE):
        yield start, min(start + PIECE_SIZE, size)


def check_finished(root: str) -> None:
    """Raises StoreNotFoundError for a copy that was begun and not finished."""
    notes = JobFolder(root)
    if not system.exists(notes.copy_note) or system.exists(notes.manifest):
        return
    noted = read_json(notes.copy_note) or {}
    source = noted.get("source", "its source")
    raise StoreNotFoundError(
        f"{root}: a copy of {source} that was not finished lies here, and no store; "
        f"finish it: mqstore copy {source} {root}"
    )
