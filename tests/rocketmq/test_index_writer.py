"""Keys written to index files by jobs of few and of many keys: the files equal the model, also if a job runs again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from storage_core.formats.rocketmq.index_insert import EMPTY
from storage_core.formats.rocketmq.indexfile import HEADER, Geometry, IndexHeader, decode_header, key_hash
from storage_core.rocketmq.index.index_writer import PAGE_SLOTS, IndexWriter, Keys
from tests.reference.rocketmq_index import Index, dispatch

pytestmark = pytest.mark.usefixtures("either_loops")

SLOTS = 5 * PAGE_SLOTS
FEW, MANY = 3, 90


class Store:
    """Index files in a folder, and the model's."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.geometry = Geometry(SLOTS, self.random.choice((60, 5000)))
        self.expected: list[Index] = []
        self.clock, self.physical_offset = 1_700_000_000_000, 0

    @property
    def paths(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def next_path(self) -> str:
        path = self.folder / f"{len(self.paths):03d}"
        path.write_bytes(bytes(self.geometry.file_size))
        return str(path)

    def keys(self, count: int) -> Keys:
        """The keys of some records, which are added to the model as well."""
        hashes, counts, physical_offsets, times = [], [], [], []
        for _ in range(count):
            self.clock += self.random.choice((0, 1, 999, 5000))
            self.physical_offset += self.random.randrange(91, 400)
            words = [f"k{self.random.randrange(60)}" for _ in range(self.random.choice((1, 1, 2)))]
            dispatch(self.expected, SLOTS, self.geometry.entries, "T", self.physical_offset, self.clock, 0,
                     {"KEYS": " ".join(words)})  # fmt: skip
            hashes += [key_hash("T", word) for word in words]
            counts.append(len(words))
            physical_offsets.append(self.physical_offset)
            times.append(self.clock)
        return Keys(np.array(hashes, np.int32), *(np.array(each) for each in (counts, physical_offsets, times)))

    def run(self, job: list[Keys], header: IndexHeader, last: Path | None, made: list[Path], whole: bool) -> None:
        """Runs a job, or its beginning; files of an earlier run are used again."""
        names = iter([*map(str, made)])
        path = None if last is None else str(last)
        writer = IndexWriter(self.geometry, path, header, lambda: next(names, None) or self.next_path())
        for keys in job if whole else job[: len(job) // 2 + 1]:
            writer.add(keys)
        if whole or self.random.random() < 0.5:
            writer.finish()
        writer.close()


@pytest.mark.parametrize("seed", range(12))
def test_jobs_leave_the_files_of_the_model(tmp_path: Path, seed: int) -> None:
    store = Store(tmp_path, seed)
    for _ in range(4):
        before = store.paths
        last = before[-1] if before else None
        header = decode_header(last.read_bytes()[: HEADER.size]) if last is not None else EMPTY
        job = [store.keys(store.random.choice((FEW, MANY))) for _ in range(store.random.randrange(1, 5))]
        if store.random.random() < 0.6:
            store.run(job, header, last, [], whole=False)
        store.run(job, header, last, store.paths[len(before) :], whole=True)
        assert [path.read_bytes() for path in store.paths] == [file.content() for file in store.expected]
