"""Fixtures: the engines under the contract, and the stores that its tests read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engine import Engine, Message, Seen
from tests.contract.engines import ENGINES
from tests.contract.messages import COUNTS, messages_of, numbered
from tests.golden.archive import fingerprint


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name, scope="session")
def every_engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return request.param


@pytest.fixture
def engine(every_engine: Engine) -> Engine:
    """Each engine in turn."""
    return every_engine


@pytest.fixture
def messages() -> list[Message]:
    """The messages of `store`, in the order in which they were written."""
    return messages_of(COUNTS)


@pytest.fixture(scope="session")
def read_only(every_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store for all tests that only read; checks afterwards that it is unchanged."""
    root = every_engine.made(tmp_path_factory.mktemp(every_engine.name) / "store", messages_of(COUNTS))
    before = fingerprint(root)
    yield root
    assert fingerprint(root) == before, "reading changed a file"


@pytest.fixture
def store(read_only: Path) -> Path:
    """A store that no test may change."""
    return read_only


@pytest.fixture
def own(read_only: Path, tmp_path: Path) -> Path:
    """A copy of the same store that a test may change; there is nothing else in its folder."""
    return shutil.copytree(read_only, tmp_path / "here" / "store")


@pytest.fixture
def everything(engine: Engine, messages: list[Message]) -> list[Seen]:
    """The messages of the store with their offsets, sorted."""
    return numbered(messages)


@pytest.fixture
def of_queue(everything: list[Seen]) -> Callable[[str], list[Seen]]:
    """The messages of one queue, in order."""
    return lambda queue: [row for row in everything if row[0] == queue]
