"""A streaming query's driver without Spark, to be killed: `python -m tests.support.streamed_driver STORE CHECKPOINT`.

It writes batch after batch as Spark does: the offset of a batch into `offsets/`, then the job, then `commits/`. After a
restart it continues where the checkpoint says. With a KILL_AT it kills itself with SIGKILL at that change of the disk
and first reports which change it is; with HALF, it does so in the middle of the change if that is a write.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store
from storage_core.files import system
from storage_core.stream.streamed_job import StreamedJob
from tests.faults import CHANGES

ROWS, TASKS, KEYS = 24, 2, 7
GEOMETRY = {
    "commitLogFileSize": 1 << 14, "consumeQueueFileEntries": 50, "indexSlots": 101, "indexEntries": 400, "queues": 4,
}  # fmt: skip
QUERY = "0b2c5d5e-7d7b-4b3b-9d3f-2f6f1a6f7a10"


def rows(batch: int, task: int) -> pa.Table:
    """The rows of one task of a batch; bodies are numbered across all batches."""
    numbers = range(batch * ROWS + task * ROWS // TASKS, batch * ROWS + (task + 1) * ROWS // TASKS)
    return pa.table({
        "topic": ["orders"] * len(numbers),
        "key": [f"k{number % KEYS}" for number in numbers],
        "body": [f"{number} {'x' * (number * 37 % 300)}" for number in numbers],
    })  # fmt: skip


class Killer:
    """Counts changes of the disk, and kills the process at one of them."""

    def __init__(self, last: int, half: bool) -> None:
        self.count, self._last, self._half = 0, last, half
        for name in CHANGES:
            setattr(system, name, self._through(name, getattr(system, name)))

    def _through(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.struck():
                if self._half and name == "pwrite":
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2], args[2])
                subject = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else args[0]
                self.die(f"{name} {subject}")
            return real(*args, **kwargs)

        return call

    def struck(self) -> bool:
        """Counts one more change; returns whether it is the last."""
        self.count += 1
        return self.count == self._last

    def die(self, where: str) -> None:
        """Reports where, and kills the process."""
        os.write(1, f"killed {where}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def note(killer: Killer, folder: Path, batch: int) -> None:
    """Writes a file of Spark's checkpoint: to a temporary file, which is then renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{batch}.tmp"
    aside.write_text(str(batch))
    if killer.struck():
        killer.die(f"rename {folder / str(batch)}")
    aside.rename(folder / str(batch))


def noted(folder: Path) -> int:
    """The last batch recorded in a folder of the checkpoint, -1 if there is none."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def write_batch(store: Path, batch: int) -> None:
    """Writes one micro-batch: as far as the job can tell, it is begun in one process, staged in tasks and committed in
    a third process.
    """
    with open_store(str(store), "rocketmq", **GEOMETRY) as opened:
        job = opened.begin_job(["topic", "key", "body"], "checkpoint")
    parts = [job.stage(iter(rows(batch, task).to_batches()), task, 0, batch * TASKS + task) for task in range(TASKS)]
    committing = pickle.loads(pickle.dumps(job))
    assert isinstance(committing, StreamedJob)
    committing.of_query(QUERY, batch).commit(parts)


def main(store: Path, checkpoint: Path, last: int, kill_at: int, half: bool) -> None:
    """Writes batches up to number `last`."""
    killer = Killer(kill_at, half)
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    for batch in range(noted(commits) + 1, last + 1):
        if noted(offsets) < batch:
            note(killer, offsets, batch)
        print(f"batch {batch} {killer.count}", flush=True)
        write_batch(store, batch)
        note(killer, commits, batch)
    print(f"done {killer.count}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
