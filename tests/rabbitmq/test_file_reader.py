"""Whole files read through one buffer: each is read to its end, whatever was read before."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.files import system
from storage_core.rabbitmq.disk.span_reader import FileReader, read_file


def test_files_of_any_order_of_sizes(tmp_path: Path) -> None:
    reader = FileReader()
    for size in (0, 5, 1000, 7, 0, 1000, 1001, 1251, 1252, 5000):
        path = tmp_path / str(size)
        path.write_bytes(bytes(index % 251 for index in range(size)))
        assert bytes(reader.read(str(path))) == path.read_bytes() == read_file(str(path))
    assert bytes(reader.read(str(tmp_path / "absent"))) == b""


def test_a_file_that_grows_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"a" * 100)
    known = system.stat(str(path))
    path.write_bytes(b"b" * 20_000_000)
    monkeypatch.setattr(system, "stat", lambda name: known)
    assert bytes(FileReader().read(str(path))) == b"b" * 20_000_000
    assert read_file(str(path)) == b"b" * 20_000_000
