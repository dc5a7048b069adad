"""HDFS through pyarrow.fs, which loads Hadoop's own libhdfs.

HDFS has no ETags: a file's length and time of the last change serve as one, and are checked after each read.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from storage_core.errors import MqStoreError
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import BackEnd, Changed, Found, Gone, Refused, Unavailable

MISSING = (
    "reading HDFS needs Hadoop's libhdfs and its jars: set HADOOP_HOME or ARROW_LIBHDFS_DIR, and CLASSPATH to what "
    "`hadoop classpath --glob` prints, on every machine that reads"
)

SILENT = "the name node does not answer; check the address"


def connect(address: Address, access: Access) -> BackEnd:
    """The name node of an address. Raises MqStoreError if libhdfs or the name node is missing."""
    del access
    arrow = importlib.import_module("pyarrow.fs")
    if not os.environ.get("CLASSPATH"):  # without it the JVM fails, and prints its own messages
        raise MqStoreError(f"{address.origin}: {MISSING}")
    host, _, port = address.authority.partition(":")
    name = f"viewfs://{host}" if address.scheme == "viewfs" else host or "default"
    try:
        return Hdfs(arrow, arrow.HadoopFileSystem(name, int(port) if port.isdigit() else 0))
    except OSError as error:
        why = MISSING if "libhdfs" in str(error) or "libjvm" in str(error) else SILENT
        raise MqStoreError(f"{address.origin}: {why}") from None


class Hdfs(BackEnd):
    """One name node."""

    def __init__(self, arrow: Any, client: Any) -> None:
        self._arrow, self._client = arrow, client

    def walk(self, prefix: str) -> Iterator[list[Found]]:
        """Everything below a folder; names of folders end with a slash."""
        yield [found for found, _ in self._listed(prefix, True)]

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """Folders and files directly in a folder."""
        listed = self._listed(prefix, False)
        folders = [found.path.rstrip("/").rpartition("/")[2] for found, is_folder in listed if is_folder]
        return folders, [found for found, is_folder in listed if not is_folder]

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        """Raises Refused: writing a file only if there is none needs more than pyarrow offers."""
        raise Refused("mqstore does not write to HDFS; copy the store there with `hdfs dfs -put`, the log first")

    def _listed(self, prefix: str, recursive: bool) -> list[tuple[Found, bool]]:
        chosen = self._arrow.FileSelector("/" + prefix, allow_not_found=True, recursive=recursive)
        try:
            infos = self._client.get_file_info(chosen)
        except OSError as error:
            raise _translated(error) from None
        is_folder = self._arrow.FileType.Directory
        if not infos and self._client.get_file_info("/").type == self._arrow.FileType.NotFound:
            raise Refused(SILENT)  # libhdfs has retried for long, and reports no answer as no file
        return [(_found(info, info.type == is_folder), info.type == is_folder) for info in infos]

    def get(self, found: Found, start: int, stop: int) -> bytes:
        """Bytes of a file that still has the length and time of the listing."""
        try:
            with self._client.open_input_file("/" + found.path) as file:
                data: bytes = file.read_at(stop - start, start)
            info = self._client.get_file_info("/" + found.path)
        except OSError as error:
            raise _translated(error) from None
        if info.type == self._arrow.FileType.NotFound:
            raise Gone
        if _found(info, False).etag != found.etag:
            raise Changed
        return data


def _found(info: Any, is_folder: bool) -> Found:
    path = info.path.partition("://")[2].partition("/")[2] if "://" in info.path else info.path.lstrip("/")
    size = 0 if is_folder else info.size
    return Found(path + "/" if is_folder else path, size, f"{size}-{info.mtime_ns}", info.mtime_ns)


def _translated(error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return Gone()
    if isinstance(error, PermissionError) or "AccessControl" in str(error) or error.errno == 13:
        return Refused("permission denied; read as a user who may")
    return Unavailable("the name node or a data node did not answer")
