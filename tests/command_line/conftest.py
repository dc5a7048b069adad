"""Real stores for the commands. No test may write to them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.golden.archive import GOLDEN, unpack
from tests.rabbitmq import golden


@pytest.fixture(scope="session")
def rocket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("shop-4.9.3", tmp_path_factory.mktemp("rocket"))


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("broker-4.9.3", tmp_path_factory.mktemp("groups"))


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """556 intact messages in the log, of which a broker would serve 68."""
    return unpack("damaged-flipped-body-abort-4.9.3", tmp_path_factory.mktemp("damaged"))


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path_factory.mktemp("rabbit")) / golden.DEFAULT_VHOST


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder)
    return folder / "node"


@pytest.fixture
def both(tmp_path: Path, rocket: Path, rabbit: Path) -> Path:
    """A folder with a store of each engine."""
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "rocket").symlink_to(rocket)
    (folder / "rabbit").symlink_to(rabbit)
    return folder
