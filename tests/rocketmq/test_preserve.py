"""`preserve=true`: what is read from a store's log and written into a new one is the same store, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import archive
from tests.support.rocketmq_copies import contents, copy_log, drop_unused, write_options

INTACT = [name for name in archive.names() if not name.startswith(("damaged-", "broker-killed", "expired"))]
LOG_ONLY = [name for name in archive.names() if name.startswith(("broker-killed", "expired"))]
DEFAULTS = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}


@pytest.mark.parametrize("name", INTACT)
def test_intact_stores_are_copied_byte_for_byte(name: str, tmp_path: Path) -> None:
    source = archive.unpack(name, tmp_path / "source")
    copy_log(source, tmp_path / "copy", write_options(archive.info(name)["settings"]))
    for kind in ("commitlog", "consumequeue", "index"):
        ours, theirs = contents(tmp_path / "copy", kind), drop_unused(contents(source, kind))
        assert [n for n, _ in ours] == [n for n, _ in theirs], kind
        assert ours or kind == "index", kind
        for (name_of, mine), (_, wanted) in zip(ours, theirs, strict=True):
            assert mine == wanted, f"{kind} {name_of}"


@pytest.mark.parametrize("name", LOG_ONLY)
@pytest.mark.parametrize("partitions", [1, 5])
def test_the_log_of_other_stores_is_copied_byte_for_byte(name: str, partitions: int, tmp_path: Path) -> None:
    source = archive.unpack(name, tmp_path / "source")
    copy_log(source, tmp_path / "copy", write_options(archive.info(name)["settings"]), partitions)
    assert contents(tmp_path / "copy", "commitlog") == drop_unused(contents(source, "commitlog"))
