"""mqstore's storage core: the on-disk stores of Apache RocketMQ and RabbitMQ, read and written without a broker."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage_core.store import Store
    from storage_core.transfer.copies import CopyReport

__all__ = ["copy_store", "find_stores", "open_store"]


def open_store(path: str | PathLike[str], engine: str | None = None, **options: Any) -> Store:
    """Opens the store in the directory or at the URI `path`; the engine is detected from its contents.

    `options` are `storage.*`, which configure access to a URI (docs/object-storage.md), and the store's own
    (`recovery`, `commitLogPath`, and for a new store its geometry). Opening does not read the log. Raises
    StoreNotFoundError, UnsupportedFormatError, OptionError, StorageError.
    """
    from storage_core.opening import open_directory

    return open_directory(fspath(path), engine, options)


def find_stores(path: str | PathLike[str], engine: str | None = None, **options: Any) -> list[str]:
    """The store directories at `path`: `path` itself, or those in it, two levels deep. Accepts globs, `file:` and URIs.

    Of the options of `open_store`, those count that say where files are and how they are reached.

    Raises StoreNotFoundError with one line that says what is there instead.
    """
    from storage_core.opening import find_directories

    return find_directories(fspath(path), engine, options)


def copy_store(
    source: str | PathLike[str], target: str | PathLike[str], engine: str | None = None, **options: Any
) -> CopyReport:
    """Copies a store from a URI to a new directory, or from a directory to a URI where nothing is stored yet.

    An interrupted copy is resumed when it is run again. `options` are those of `open_store`, for the store at `source`.
    Raises StoreNotFoundError, StoreLockedError while a broker runs on it, StoreChangedError, CorruptionError if bytes
    are not those of the copy's manifest, MqStoreError for a target that is not new.
    """
    from storage_core.transfer.transfer import copy

    return copy(fspath(source), fspath(target), engine, options)
