"""The kinds of stores that a writer dies in, as a stock store opens them, and where mqstore and it disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden import archive
from tests.real import truth
from tests.real.case import says_5x
from tests.support.rocketmq_copies import write_options
from tests.support.rocketmq_writes import GEOMETRY

SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200, "maxHashSlotNum": 11, "maxIndexNum": 40}


def settings_of(kind: str) -> dict[str, Any]:
    return SMALL if kind in ("new", "own") else archive.info(kind)["settings"]


def options_of(kind: str) -> dict[str, Any]:
    """The broker's geometry; a store that has files keeps theirs."""
    return GEOMETRY if kind in ("new", "own") else write_options(archive.info(kind)["settings"])


def disagreements(directory: Path, settings: dict[str, Any], version: str) -> list[str]:
    """What mqstore reads otherwise than the real store. A unit that a broker left behind, and that now points at a
    record of another queue, may be left out (interface.md 41).
    """
    told = truth.ask(version, directory, settings)
    assert not told.never_answers, told.notes
    misfiled = {m["unitOffset"] for m in told.messages if (m["topic"], m["queueId"]) != m["foundAt"][:2]}
    return truth.check(directory, told, misfiled, 2, (version == "533") == says_5x(directory))
