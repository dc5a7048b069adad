"""Python loads this by itself where this folder is on its path: the processes that Spark forks its workers from import
what every worker needs, once. A worker ends with each error, and tests of errors would import it hundreds of times.
"""

import importlib
import sys

MODULES = ("pandas", "pyarrow", "pyspark.worker", "connector.datasource", "connector.batch_reader",
           "connector.batch_writer", "storage_core.rabbitmq.store", "storage_core.rocketmq.store")  # fmt: skip

if "pyspark.daemon" in sys.orig_argv:
    for name in MODULES:
        importlib.import_module(name)
