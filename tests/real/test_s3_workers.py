"""Spark with two workers that see no local copy: each executor is in a mount namespace where the buckets are empty."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core import find_stores, open_store
from storage_core.files.remote import registry
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.blind_java import blind_java_home, way_to_hide
from tests.support.faulty_proxy import faulty_proxy
from tests.support.s3_server import KEY, SECRET, S3Server, s3_server
from tests.support.spark_session import QUICK_JAVA

pytestmark = pytest.mark.real

LOGS = ("mixed-4.9.3", "mixed-5.3.3", "damaged-torn-tail-abort-4.9.3")
NODE = "s6_2048_clean_busy"
ROCKETMQ, RABBITMQ = ("topic", "queueId", "queueOffset", "body"), ("queue", "sequenceId", "body")

JOB = """
import json, os, sys, time, zlib
import mqstore
from pyspark.sql import SparkSession
asked = json.load(sys.stdin)
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in asked["settings"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
def seen(_):
    time.sleep(0.5)
    return os.readlink("/proc/self/ns/mnt"), tuple(os.listdir(asked["hidden"]))
workers = set(spark.sparkContext.parallelize(range(8), 8).map(seen).collect())
print("WORKERS", json.dumps(sorted(workers)))
print("DRIVER", json.dumps([os.readlink("/proc/self/ns/mnt"), sorted(os.listdir(asked["hidden"]))]))
for path, columns in asked["stores"]:
    options = asked["options"] if "://" in path else {}
    try:
        frame = spark.read.format("mqstore").option("minPartitions", 4).options(**options).load(path)
        rows = [list(row)[:-1] + [zlib.crc32(row[-1])] for row in frame.select(*columns).collect()]
        print("ROWS", json.dumps(sorted(rows)))
    except Exception as error:
        print("ROWS", json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3workers")
    for name in LOGS:
        archive.unpack(name, root / "buckets" / "backups" / name)
    golden.unpack(NODE, root / "buckets" / "nodes" / NODE)
    with s3_server(root) as running:
        yield running


def rows_on_disk(path: Path, columns: tuple[str, ...]) -> list[list[object]]:
    rows: list[list[object]] = []
    for found in find_stores(str(path)):
        with open_store(found) as store:
            for piece in store.snapshot().plan(ScanRequest(columns=columns)):
                for batch in piece.read():
                    rows += [[*list(row.values())[:-1], zlib.crc32(row["body"])] for row in batch.to_pylist()]
    return sorted(rows, key=repr)


def test_two_workers_that_see_no_local_copy_read_the_same_rows(server: S3Server, tmp_path: Path) -> None:
    """In addition, every third request for bytes fails once."""
    way = way_to_hide(server.folder)
    if way is None:
        pytest.skip(
            "this system makes no mount namespaces (unshare --mount): workers cannot be kept from the local copy"
        )
    java = Path(shutil.which("java") or "java").resolve()
    directories = [(server.folder / "backups" / name / "store", ROCKETMQ) for name in LOGS]
    directories.append((server.folder / "nodes" / NODE, RABBITMQ))
    uris = [(f"s3://{path.relative_to(server.folder)}", columns) for path, columns in directories]
    registry.forget_all()
    with faulty_proxy(server.endpoint) as proxy:
        proxy.begin("503")
        task = {
            "settings": {
                "spark.ui.enabled": "false",
                "spark.task.maxFailures": "1",
                "spark.driver.extraJavaOptions": QUICK_JAVA,
                "spark.executor.extraJavaOptions": QUICK_JAVA,
                "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
                "spark.executorEnv.JAVA_HOME": str(blind_java_home(tmp_path / "java", server.folder, way, java)),
            },
            "hidden": str(server.folder),
            "options": {**server.options, "storage.endpoint": proxy.endpoint},
            "stores": [*uris, (str(directories[0][0]), ROCKETMQ)],
        }
        done = _run(task, tmp_path)
        assert proxy.struck > 0
    assert done.returncode == 0, done.stderr[-3000:]
    assert not any(secret in done.stdout + done.stderr for secret in (KEY, SECRET))
    lines = [line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]
    by_name = {name: json.loads(text) for name, text in lines if name in ("WORKERS", "DRIVER")}
    namespaces = {namespace for namespace, _ in by_name["WORKERS"]}
    assert [names for _, names in by_name["WORKERS"]] == [[], []]
    assert len(namespaces - {by_name["DRIVER"][0], os.readlink("/proc/self/ns/mnt")}) == 2
    assert by_name["DRIVER"][1] == ["backups", "nodes"]
    *remote, local = [json.loads(text) for name, text in lines if name == "ROWS"]
    for rows, (path, columns) in zip(remote, directories, strict=True):
        expected = rows_on_disk(path, columns)
        assert len(expected) > 100
        assert sorted(rows, key=repr) == expected, path
    assert isinstance(local, str), "the workers read the local copy"
    assert "every machine that runs Spark must see the store at this path" in local


def _run(task: object, folder: Path) -> subprocess.CompletedProcess[str]:
    job = folder / "job.py"
    job.write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, str(job)], input=json.dumps(task), capture_output=True, text=True, timeout=280, check=False,
        env=environment, cwd=folder,
    )  # fmt: skip
