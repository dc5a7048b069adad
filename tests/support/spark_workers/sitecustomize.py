"""Python loads this module by itself if its folder is on the path: the processes that fork Spark's workers then import
what every worker needs, once. A worker ends with each error, so tests of errors would import it again each time.
"""

import importlib
import sys

MODULES = ("pandas", "pyarrow", "pyspark.worker", "connector.datasource", "connector.batch_reader",
           "connector.batch_writer", "storage_core.rabbitmq.store", "storage_core.rabbitmq.write.job",
           "storage_core.rocketmq.store", "storage_core.rocketmq.write.job")  # fmt: skip

if "pyspark.daemon" in sys.orig_argv:
    for name in MODULES:
        importlib.import_module(name)
