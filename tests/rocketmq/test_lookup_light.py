"""A message in several queues is a row of each, also in lookups: light queues, whose records have another topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.store import ScanRequest
from tests.reference.served import AS_BROKER, place, read
from tests.rocketmq.light_store import make_light_store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_light_store(tmp_path / "store")


@pytest.mark.parametrize("options", [{}, {"topics": ("%LMQ%b",)}, {"topics": ("T",)}, {"topics": ("%LMQ%a", "T")}])
def test_every_queue_of_a_message(directory: Path, options: dict[str, tuple[str, ...]]) -> None:
    rows = read(directory, ScanRequest(**options, **AS_BROKER))
    assert rows
    for key in ("k0", "k1", "k6", "none"):
        got = read(directory, ScanRequest(keys=(key,), **options, **AS_BROKER))
        assert sorted(got, key=place) == sorted((row for row in rows if row["key"] == key), key=place)
    for message_id in ("U0000", "U0015", "U0007"):
        got = read(directory, ScanRequest(message_ids=(message_id,), **options, **AS_BROKER))
        assert sorted(got, key=place) == sorted((row for row in rows if row["msgId"] == message_id), key=place)
