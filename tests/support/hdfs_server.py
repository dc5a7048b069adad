"""HDFS for tests: Hadoop's own name node and data node, from jars fetched by Maven, on free ports of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.cache import maven_alone
from tests.support.free_ports import free_port

VERSION = "3.5.0"
JARS = ("hadoop-client-minicluster", "hadoop-client-api", "hadoop-client-runtime")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
NODES = "org.apache.hadoop.hdfs.server"
LOGGERS = ("slf4j", "log4j", "commons-logging", "jackson")
START_S = 120


@dataclass(frozen=True)
class HdfsServer:
    """A running name node: its `host:port`, and the CLASSPATH of its readers."""

    authority: str
    class_path: str


def class_path(folder: Path) -> str:
    """The class path of Hadoop's jars, fetched into the folder, and of the logging jars that Spark ships."""
    with maven_alone():
        for name in JARS:
            artifact = f"-Dartifact=org.apache.hadoop:{name}:{VERSION}"
            call = ["mvn", "-q", "-B", COPY, artifact, f"-DoutputDirectory={folder}"]
            subprocess.run(call, check=True, timeout=300, stdout=subprocess.DEVNULL)
    jars = Path(pyspark.__file__).parent / "jars"
    loggers = [str(jar) for jar in sorted(jars.glob("*.jar")) if any(name in jar.name for name in LOGGERS)]
    return ":".join([str(folder), *(str(folder / f"{name}-{VERSION}.jar") for name in JARS), *loggers])


@contextmanager
def hdfs_server(folder: Path) -> Iterator[HdfsServer]:
    """Runs both nodes while the block runs."""
    authority = f"127.0.0.1:{free_port()}"
    settings = {
        "fs.defaultFS": f"hdfs://{authority}", "dfs.replication": "1", "dfs.permissions.enabled": "false",
        "dfs.namenode.name.dir": str(folder / "name"), "dfs.datanode.data.dir": str(folder / "data"),
        "dfs.namenode.http-address": "127.0.0.1:0", "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0", "dfs.datanode.ipc.address": "127.0.0.1:0",
    }  # fmt: skip
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{rows}</configuration>")
    path = class_path(folder)
    java = ["java", "-Xmx256m", "-cp", path]
    name_node, data_node = f"{NODES}.namenode.NameNode", f"{NODES}.datanode.DataNode"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*java, name_node, "-format", "-nonInteractive"], check=True, timeout=START_S, **quiet)
    running = [subprocess.Popen([*java, node], **quiet) for node in (name_node, data_node)]
    try:
        _wait(authority)
        yield HdfsServer(authority, path)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def _wait(authority: str) -> None:
    host, port = authority.split(":")
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise RuntimeError("the name node does not answer")


def reader_environment(server: HdfsServer, libhdfs: str) -> dict[str, str]:
    """The environment of a process that reads from the server; `libhdfs`: the folder of libhdfs.so."""
    home = os.environ.get("JAVA_HOME", "")
    return {**os.environ, "CLASSPATH": server.class_path, "ARROW_LIBHDFS_DIR": libhdfs,
            "LD_LIBRARY_PATH": f"{home}/lib/server"}  # fmt: skip
