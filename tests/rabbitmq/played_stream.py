"""A real stream that grows in a folder as it did on its node."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.rabbitmq import stream_golden as golden


class Played:
    """The files of a real stream, written to a folder chunk by chunk as a node does: the chunk, then its record."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        self.source = golden.unpack(name, tmp_path / "source")
        self.target = tmp_path / "node" / "stream"
        for table in self.source.parent.iterdir():
            if table.is_file():
                (tmp_path / "node").mkdir(exist_ok=True)
                shutil.copy(table, tmp_path / "node")
        (self.folder,) = (each for each in self.source.iterdir())
        self.stream = self.target / self.folder.name
        self.stream.mkdir(parents=True)
        self.segments = sorted(self.folder.glob("*.segment"))
        self.steps = [
            (segment, 8 + 29 * number)
            for segment in self.segments
            for number in range(1, (segment.with_suffix(".index").stat().st_size - 8) // 29 + 1)
        ]
        self.done = 0

    def grow(self, chunks: int) -> None:
        """Adds the given number of chunks. After them, part of the next chunk and of its record is already written."""
        for segment, stop in self.steps[self.done : self.done + chunks]:
            index = segment.with_suffix(".index").read_bytes()
            position = int.from_bytes(index[stop + 24 : stop + 28], "big") if stop + 29 <= len(index) else 1 << 40
            append(self.stream / segment.name, segment.read_bytes()[: position + 30])
            append(self.stream / segment.with_suffix(".index").name, index[: stop + 7])
        self.done += chunks

    def expire(self) -> None:
        """Deletes the first segment."""
        first = min(self.stream.glob("*.segment"))
        first.with_suffix(".index").unlink()
        first.unlink()


def append(path: Path, whole: bytes) -> None:
    """Appends the part of `whole` that a file lacks. The file never shrinks meanwhile, as a reader may have it open."""
    with path.open("ab") as file:
        file.write(whole[path.stat().st_size :])
