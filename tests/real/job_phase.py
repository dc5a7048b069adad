"""The phase of a write, as the files of its store show it."""

from __future__ import annotations

import os
from pathlib import Path

from storage_core.job import pending_intent
from storage_core.rocketmq.write.commit_point import GUARD


def phase(store: Path) -> str:
    """The phase of the job that is running or was killed, as its files show it."""
    notes = store / ".mqstore"
    if (notes / "intent.json").exists():
        return "publish" if pending_intent(str(store)) else "cleaning up"
    try:
        jobs = os.listdir(notes / "staging")
    except FileNotFoundError:
        jobs = []
    if (store / "commitlog" / GUARD).exists() or any((notes / "staging" / job / "new").exists() for job in jobs):
        return "prepare"
    return "staging" if jobs else "none"
