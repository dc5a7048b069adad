"""The kinds of stores in which a writer dies, with the settings of a stock store, and how mqstore differs from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden import archive
from tests.real import truth
from tests.real.case import has_5x_marks
from tests.support.rocketmq_copies import write_options
from tests.support.rocketmq_writes import GEOMETRY

SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200, "maxHashSlotNum": 11, "maxIndexNum": 40}


def settings_of(kind: str) -> dict[str, Any]:
    return SMALL if kind in ("new", "own") else archive.info(kind)["settings"]


def options_of(kind: str) -> dict[str, Any]:
    """The broker's geometry; a store that has files keeps its own."""
    return GEOMETRY if kind in ("new", "own") else write_options(archive.info(kind)["settings"])


def disagreements(directory: Path, settings: dict[str, Any], version: str) -> list[str]:
    """Where mqstore's rows differ from the real store's. A unit that a broker left behind, and that now points to a
    record of another queue, may be left out (interface.md 41).
    """
    stock = truth.ask(version, directory, settings)
    assert not stock.never_answers, stock.notes
    misfiled = {m["unitOffset"] for m in stock.messages if (m["topic"], m["queueId"]) != m["foundAt"][:2]}
    return truth.check(directory, stock, misfiled, 2, (version == "533") == has_5x_marks(directory))
