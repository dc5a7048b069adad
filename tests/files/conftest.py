"""A bucket in memory, and a store to copy into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.files.remote import requests
from storage_core.transfer import manifest
from tests.golden import archive
from tests.support.memory_bucket import Bucket, served


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    with served(Bucket()) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of several log files, with an empty folder."""
    directory = archive.unpack("mixed-4.9.3", tmp_path / "made")
    (directory / "config" / "empty").mkdir(parents=True)
    return directory


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pieces so small that a file has several."""
    monkeypatch.setattr(manifest, "PIECE_SIZE", 64 << 10)
