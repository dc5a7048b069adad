"""The Spark settings that make reads faster (docs/spark-settings.md has their effects and the measurements)."""

from __future__ import annotations

ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def spark_settings(java_options: str = "") -> dict[str, str]:
    """Settings for a new session: `SparkSession.builder.config(map=mqstore.spark_settings())`.

    `java_options` are your own options for the JVM of driver and executors, which these settings would otherwise
    replace. No setting changes a result. They are read when the JVM starts and do not affect a running session.
    """
    options = f"{java_options} {ARROW}".strip()
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
    }
