"""Fixtures for tests that run on each golden store of one kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden import archive


def name_and_directory(engine: str) -> tuple[Any, Any]:
    """Fixtures `name` and `directory`: each store below `tests/golden/<engine>`, unpacked."""

    @pytest.fixture(params=archive.names(engine))
    def name(request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def directory(name: str, tmp_path: Path) -> Path:
        return archive.unpack(name, tmp_path, engine)

    return name, directory
