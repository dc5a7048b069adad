"""A small file is read as it was when it was opened, even if it is removed or replaced meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core.files import system
from storage_core.files.small_file import CHUNK_SIZE, read_whole, write_whole

OLD = bytes(range(256)) * 5


@pytest.mark.parametrize("change", [Path.unlink, lambda path: write_whole(str(path), b"new"),
                                    lambda path: write_whole(str(path), OLD * 3)],
                         ids=["removed", "replaced by less", "replaced by more"])  # fmt: skip
def test_what_was_opened_is_read(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "intent.json"
    path.write_bytes(OLD)
    opened = system.open_read

    def open_then_change(name: str) -> int:
        descriptor = opened(name)
        change(path)
        return descriptor

    with monkeypatch.context() as patched:
        patched.setattr(system, "open_read", open_then_change)
        assert read_whole(str(path)) == OLD


@pytest.mark.parametrize("size", [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE])
def test_all_bytes_are_read(size: int, tmp_path: Path) -> None:
    data = (OLD * (size // len(OLD) + 1))[:size]
    (tmp_path / "file").write_bytes(data)
    assert read_whole(str(tmp_path / "file")) == data


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_whole(str(tmp_path / "absent")) is None
    assert read_whole(str(tmp_path / "file" / "below")) is None
