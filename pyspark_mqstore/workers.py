"""Makes Spark's workers run this Python where Spark would otherwise take another one from the PATH.

Spark starts its Python workers as `python3` from the PATH unless PYSPARK_PYTHON names another program. In a Jupyter
kernel, an IDE or a cron job the PATH is often not that of the virtual environment, and Spark then does not find the
data source. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import sys

# If one of these is set, the user, spark-submit, a cluster's configuration or a managed platform decides.
DECIDED_ELSEWHERE = (
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "KUBERNETES_SERVICE_HOST",
    "DATABRICKS_RUNTIME_VERSION",
    "SPARK_HOME",
)


def use_this_python() -> bool:
    """Sets PYSPARK_PYTHON to the running Python if that is safe and changes anything; returns whether it did.

    Nothing is changed if the PATH's `python3` is this environment's, or if a variable of `DECIDED_ELSEWHERE` is set:
    executors of a cluster need a Python of their own machines. Call it before the Spark session starts; a running
    session keeps its Python.
    """
    if not sys.executable or any(os.environ.get(name) for name in DECIDED_ELSEWHERE):
        return False
    if shutil.which("python3") == _python3_beside(sys.executable):
        return False
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return True


def _python3_beside(program: str) -> str:
    """The `python3` of the environment that `program` belongs to. Links are not followed: they make environments."""
    return os.path.join(os.path.dirname(program), "python3")
