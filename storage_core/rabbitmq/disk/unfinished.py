"""A committed but unfinished job, which readers treat as if it were absent.

`publish` finishes it, which only writers do. Source: commit-protocol.md 7, 15.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core import job as jobs
from storage_core.files import system
from storage_core.formats.rabbitmq import paths
from storage_core.job import JobFolder

BEFORE = "before"
"""Folder in a job's staging that keeps what the store recorded at its last clean stop until the job is done."""


@dataclass(frozen=True)
class Pending:
    """`files` are the paths below the store that the job adds; `before` holds the tables of the last clean stop,
    None if there is no such job, or the store was not clean.
    """

    files: frozenset[str] = frozenset()
    before: str | None = None


def pending(root: str) -> Pending:
    """The unfinished job of a store, if there is one. Raises MqStoreError if its folder is not in the store."""
    intent = jobs.pending_intent(root)
    if intent is None:
        return Pending()
    jobs.refuse_outside(root, [intent["job"]])
    before = f"{JobFolder(root).staging(intent['job'])}/{BEFORE}"
    has_recovery_file = system.exists(f"{before}/{paths.RECOVERY_FILE}")
    return Pending(frozenset(target for _, target in intent["moves"]), before if has_recovery_file else None)
