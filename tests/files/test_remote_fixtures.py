"""Every fixture of real systems, read from a bucket in memory and from disk: the same tables, errors and findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core import find_stores
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.memory_bucket import Bucket, served
from tests.support.remote_answers import (
    Twins,
    assert_rabbitmq_same,
    assert_recorded_queries_same,
    assert_rocketmq_same,
)
from tests.support.sampling import sample

pytestmark = pytest.mark.sampled

ROOT = "memory://backups/nightly"


@pytest.fixture(params=sample(archive.names(), 8, "remote"))
def rocketmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Twins]]:
    directory = archive.unpack(request.param, tmp_path)
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        yield request.param, Twins(directory, f"{ROOT}/store")


@pytest.fixture(params=sample(golden.NAMES, 5, "remote"))
def rabbitmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Twins]:
    directory = golden.unpack(request.param, tmp_path)
    with served(Bucket()) as bucket:
        bucket.add_folder(directory, "nightly/store")
        yield Twins(directory, f"{ROOT}/store")


def test_rocketmq_stores_read_the_same(rocketmq: tuple[str, Twins]) -> None:
    assert find_stores(ROOT) == [f"{ROOT}/store"]
    assert_rocketmq_same(*rocketmq)


def test_recorded_queries_are_answered_the_same(rocketmq: tuple[str, Twins]) -> None:
    assert_recorded_queries_same(*rocketmq)


def test_rabbitmq_stores_read_the_same(rabbitmq: Twins) -> None:
    assert_rabbitmq_same(rabbitmq)
