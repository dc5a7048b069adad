"""Errors of the operating system become mqstore errors: one line that names the file, and still an OSError."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from storage_core.errors import DiskError, FileGoneError, MqStoreError, NoFolderError, disk_error
from storage_core.files import system


def test_a_descriptor_is_named_by_its_path(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(DiskError, match=f"DiskError: {tmp_path}: Is a directory; a folder stands in") as caught:
            system.pread(descriptor, 1, 0)
    finally:
        os.close(descriptor)
    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, str(tmp_path))


def test_kinds_that_callers_ask_for_stay(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError) as gone:
        system.open_read(str(tmp_path / "gone"))
    with pytest.raises(NotADirectoryError) as through:
        system.names(str(tmp_path / "file"))
    assert isinstance(gone.value, FileGoneError)
    assert isinstance(through.value, NoFolderError)
    with pytest.raises(FileExistsError) as there:
        system.open_write(str(tmp_path / "file"), create=True, exclusive=True)
    assert not isinstance(there.value, MqStoreError)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOENT, errno.ENOTDIR])
def test_they_survive_pickling(code: int) -> None:
    error = disk_error(OSError(code, os.strerror(code)), "/some/file")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, DiskError)
    assert (type(again), str(again)) == (type(error), str(error))
    assert (again.errno, again.strerror, again.filename) == (code, os.strerror(code), "/some/file")
    assert str(again).startswith(f"{type(error).__name__}: /some/file: {os.strerror(code)}; ")


def test_a_link_that_leads_to_itself_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("gone")
    (tmp_path / "file").touch()
    assert [entry.name for entry in system.entries(str(tmp_path))] == ["file"]
