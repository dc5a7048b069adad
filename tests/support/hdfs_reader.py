"""`python -m tests.support.hdfs_reader AUTHORITY FOLDER`: puts every fixture into an HDFS and compares what is read.

It runs as a separate process because libhdfs starts a JVM with the CLASSPATH of the environment. It prints `EQUAL name`
for each fixture, and for what Spark's workers read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyarrow import fs

from storage_core import copy_store, open_store
from storage_core.errors import MqStoreError
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.copied_stores import contents
from tests.support.remote_answers import (
    SPARSE,
    Twins,
    assert_rabbitmq_same,
    assert_recorded_queries_same,
    assert_rocketmq_same,
)
from tests.support.spark_session import session

COPIED = ("mixed-4.9.3", "mixed-5.3.3", "damaged-flipped-body-abort-4.9.3")


def main(authority: str, folder: Path) -> None:
    host, _, port = authority.partition(":")
    client = fs.HadoopFileSystem(host, int(port))
    _wait(client)
    for name in archive.names():
        if name != SPARSE:  # the tests over the in-memory bucket read its gigabytes of zeros
            store = archive.unpack(name, folder / name)
            twins = Twins(store, f"hdfs://{authority}{_put(client, store, f'/backups/a b/%LMQ% ü/{name}/store')}")
            assert_rocketmq_same(name, twins)
            assert_recorded_queries_same(name, twins)
            if name in COPIED:
                copy_store(twins.uri, str(folder / "down" / name))
                assert contents(folder / "down" / name).keys() == contents(store).keys()
            print("EQUAL", name, flush=True)
    for name in golden.NAMES:
        node = golden.unpack(name, folder / name)
        assert_rabbitmq_same(Twins(node, f"hdfs://{authority}{_put(client, node, f'/nodes/{name}/{node.name}')}"))
        print("EQUAL", name, flush=True)
    _by_spark(folder / COPIED[0] / "store", f"hdfs://{authority}/backups/a b/%LMQ% ü/{COPIED[0]}/store")
    for path in (f"hdfs://{authority}/none", "hdfs://127.0.0.1:1/none"):
        try:
            open_store(path)
        except MqStoreError as error:
            print("ERROR", error)
    try:
        copy_store(str(folder / COPIED[0] / "store"), f"hdfs://{authority}/new")
    except MqStoreError as error:
        print("ERROR", error)


def _by_spark(store: Path, uri: str) -> None:
    spark = session()
    there, here = (spark.read.format("mqstore").option("minPartitions", 4).load(path) for path in (uri, str(store)))
    if there.toArrow().equals(here.toArrow()):
        print("EQUAL Spark", flush=True)
    spark.stop()


def _put(client: fs.HadoopFileSystem, directory: Path, target: str) -> str:
    client.create_dir(target)
    for path in sorted(directory.rglob("*")):
        below = f"{target}/{path.relative_to(directory)}"
        if path.is_dir():
            client.create_dir(below)
        else:
            with client.open_output_stream(below) as out:
                out.write(path.read_bytes())
    return target


def _wait(client: fs.HadoopFileSystem) -> None:
    """Waits until the name node has a data node."""
    for _ in range(120):
        try:
            with client.open_output_stream("/probe") as out:
                out.write(b"x")
        except OSError:
            time.sleep(1)
        else:
            return
    raise RuntimeError("no data node came")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
