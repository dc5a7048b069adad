"""mqstore's public Python API: stores in Python, Spark DataFrames of stores, errors.

Importing it loads only the standard library, so that it is cheap in a notebook, a script and a Spark worker; each name
is loaded on first use. If no Spark session exists yet, the import makes Spark's local workers run this Python
(`pyspark_mqstore/workers.py` states the exceptions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_mqstore.workers import use_this_python

if TYPE_CHECKING:
    from pyspark_mqstore import ensure_java, read
    from pyspark_mqstore.settings import spark_settings
    from storage_core import find_stores, open_store
    from storage_core.errors import (
        CheckpointError,
        ColumnError,
        CorruptionError,
        DataLossError,
        FormatError,
        MqStoreError,
        OffsetOutOfRangeError,
        OptionError,
        RowError,
        StorageError,
        StoreChangedError,
        StoreClosedError,
        StoreLockedError,
        StoreNotFoundError,
        TornWriteError,
        UnsupportedFormatError,
    )

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ColumnError",
    "CorruptionError",
    "DataLossError",
    "FormatError",
    "MqStoreError",
    "OffsetOutOfRangeError",
    "OptionError",
    "RowError",
    "StorageError",
    "StoreChangedError",
    "StoreClosedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "TornWriteError",
    "UnsupportedFormatError",
    "__version__",
    "ensure_java",
    "find_stores",
    "open_store",
    "read",
    "spark_settings",
]

use_this_python()


def __getattr__(name: str) -> object:
    if name in ("find_stores", "open_store"):
        import storage_core

        return getattr(storage_core, name)
    if name in ("ensure_java", "read"):
        import pyspark_mqstore

        return getattr(pyspark_mqstore, name)
    if name == "spark_settings":
        from pyspark_mqstore.settings import spark_settings

        return spark_settings
    if name in __all__:
        from storage_core import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'mqstore' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
