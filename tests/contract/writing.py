"""Jobs run step by step, and the contents of a store before and after them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from storage_core import open_store
from storage_core.store import StagedPart, WriteJob
from tests.contract.engine import Engine, Message
from tests.contract.messages import NEW
from tests.golden.archive import fingerprint

BODIES = {message.body for message in NEW}


def contents(root: Path) -> dict[str, tuple[int, str]]:
    """All files beside and below a store with length and digest, except the writers' lock, which may appear."""
    found = {name: entry[1:] for name, entry in fingerprint(root.parent).items()}
    return {name: entry for name, entry in found.items() if not name.endswith((".mqstore", ".mqstore/lock"))}


def begin_job(engine: Engine, root: Path, **options: Any) -> WriteJob:
    with open_store(str(root)) as opened:
        return opened.begin_job(engine.table(NEW).schema.names, **options)


def staged(engine: Engine, job: WriteJob, messages: list[Message], partition: int = 0, **numbers: int) -> StagedPart:
    """Stages messages as a task does: on another machine, in several batches."""
    batches = engine.table(messages).to_batches(max_chunksize=4)
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(job)).stage(iter(batches), partition, **numbers)))


def bodies(engine: Engine, root: Path, queue: str) -> list[bytes]:
    return [body for name, _, body in sorted(engine.rows(root)) if name == queue]


def written(messages: list[Message], queue: str) -> list[bytes]:
    return [message.body for message in messages if message.queue == queue]
