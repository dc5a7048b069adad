"""One copy between a disk and a URI, in either direction: determines which, and rejects bad requests up front."""

from __future__ import annotations

from typing import Any

from storage_core.errors import OptionError
from storage_core.files.address import is_remote, normal_path
from storage_core.files.remote import registry
from storage_core.files.remote.access import without_access
from storage_core.opening import log_paths_of, open_directory
from storage_core.transfer.copies import CopyReport
from storage_core.transfer.download import Download
from storage_core.transfer.upload import Upload


def copy(source: str, target: str, engine: str | None, options: dict[str, Any]) -> CopyReport:
    """Copies the store at `source` to `target`; one of the two is a URI, the other a directory."""
    start, end = normal_path(source), normal_path(target)
    if is_remote(start) == is_remote(end):
        way = "give a directory as TARGET" if is_remote(start) else "`cp -a --sparse=always` copies between directories"
        raise OptionError("TARGET", target, f"one of the two must be a URI and the other a directory; {way}")
    _, access = without_access(options)
    logs = [normal_path(path) for path in log_paths_of(options)]
    with open_directory(start, engine, options, existing=True) as store:
        if is_remote(start):
            return Download(store.path, store.engine, logs, end).run()
        remote = registry.attach(end, access)
        try:
            return Upload(store.path, store.engine, logs, end, remote).run()
        finally:
            remote.forget_names()
            registry.detach(end)
