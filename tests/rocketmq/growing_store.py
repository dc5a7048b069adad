"""A store that a broker fills, byte by byte: the log first, queue entries later, both cut wherever the test chooses."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from storage_core import open_store
from storage_core.store import Scan, ScanRequest

ENTRY_SIZE = 20


@dataclass
class GrowingStore:
    """Fills `root` until it equals `model`, a finished store. Files are created at full length."""

    model: Path
    root: Path
    written: int = 0
    listed: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with open_store(str(self.model)) as store:
            wanted = ScanRequest(
                columns=("topic", "queueId", "queueOffset", "physicalOffset", "size"), scan=Scan.LOG
            )  # fmt: skip
            batches = [batch for piece in store.snapshot().plan(wanted) for batch in piece.read()]
        self.records = pa.Table.from_batches(batches).sort_by("physicalOffset").to_pylist()
        self.end = self.records[-1]["physicalOffset"] + self.records[-1]["size"]
        for name in ("commitlog", "consumequeue", "config"):
            (self.root / name).mkdir(parents=True)
        (self.root / "abort").touch()

    def write(self, stop: int) -> None:
        """Writes the log up to an address, which may be inside a record."""
        for source in sorted((self.model / "commitlog").iterdir()):
            base = int(source.name)
            self._copy(source, self.root / "commitlog" / source.name, self.written - base, stop - base)
        self.written = max(self.written, stop)

    def list(self, count: int, torn: int = 0) -> None:
        """Writes the queue entries of the next `count` whole records, and the first `torn` bytes of one more."""
        done = sum(self.listed.values())
        for number, record in enumerate(self.records[done : done + count + bool(torn)]):
            if record["physicalOffset"] + record["size"] > self.written:
                return
            key = record["topic"], record["queueId"]
            size = ENTRY_SIZE if number < count else torn
            self._entry(key, record["queueOffset"], size)
            if size == ENTRY_SIZE:
                self.listed[key] = self.listed.get(key, 0) + 1

    def list_in(self, key: tuple[str, int], count: int) -> None:
        """Writes the first `count` entries of a queue that records name besides their own."""
        for queue_offset in range(count):
            self._entry(key, queue_offset, ENTRY_SIZE)

    def _entry(self, key: tuple[str, int], queue_offset: int, size: int) -> None:
        folder = Path("consumequeue") / key[0] / str(key[1])
        for source in sorted((self.model / folder).iterdir()):
            at = queue_offset * ENTRY_SIZE - int(source.name)
            if 0 <= at < source.stat().st_size:
                self._copy(source, self.root / folder / source.name, at, at + size)

    def _copy(self, source: Path, target: Path, start: int, stop: int) -> None:
        length = source.stat().st_size
        start, stop = max(start, 0), min(stop, length)
        if start >= stop:
            return
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                file.truncate(length)
        with source.open("rb") as file, target.open("r+b") as out:
            file.seek(start)
            out.seek(start)
            out.write(file.read(stop - start))

    def expire(self) -> None:
        """Deletes the oldest log file."""
        min((self.root / "commitlog").iterdir()).unlink()

    def delete(self, topic: str) -> None:
        """Deletes the queues of a topic."""
        shutil.rmtree(self.root / "consumequeue" / topic)
