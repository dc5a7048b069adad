"""Stores in a real S3 server: the same rows as on disk, also through Spark; one-line errors without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import StorageError, StoreChangedError, StoreNotFoundError
from storage_core.files.remote import registry
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.remote_answers import (
    Twins,
    assert_rabbitmq_same,
    assert_recorded_queries_same,
    assert_rocketmq_same,
)
from tests.support.s3_server import KEY, SECRET, S3Server, s3_server

pytestmark = pytest.mark.real

ROCKETMQ = [name for name in archive.names() if name != "defaults-4.9.3"]  # its gigabyte of zeros: in memory only
AWKWARD = "a b/%LMQ% ü"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    for name in ROCKETMQ:
        archive.unpack(name, root / "buckets" / "backups" / name)
    archive.unpack("mixed-4.9.3", root / "buckets" / "backups" / AWKWARD)
    for name in golden.NAMES:
        golden.unpack(name, root / "buckets" / "nodes" / name)
    with s3_server(root) as running:
        yield running


def rows_on_disk(path: Path) -> pa.Table:
    with open_store(str(path)) as store:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(ScanRequest()) for batch in piece.read()]
        return pa.Table.from_batches(batches)


@pytest.mark.parametrize("name", ROCKETMQ)
def test_rocketmq_fixtures_are_the_same(server: S3Server, tmp_path: Path, name: str) -> None:
    twins = Twins(archive.unpack(name, tmp_path), f"s3://backups/{name}/store", server.options)
    assert_rocketmq_same(name, twins)
    assert_recorded_queries_same(name, twins)


@pytest.mark.parametrize("name", golden.NAMES)
def test_rabbitmq_fixtures_are_the_same(server: S3Server, tmp_path: Path, name: str) -> None:
    """Compares with a separate copy: a store whose files the server holds open is in use."""
    golden.unpack(name, tmp_path)
    assert_rabbitmq_same(Twins(tmp_path, f"s3://nodes/{name}", server.options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage.accessKey": "nobody"}, "InvalidAccessKeyId"),
        ({"storage.secretKey": "not-the-secret"}, "SignatureDoesNotMatch"),
        ({"storage.endpoint": "http://127.0.0.1:1"}, "nobody listens there"),
    ],
)
def test_a_wrong_access_is_one_line_without_the_key(server: S3Server, change: dict[str, str], message: str) -> None:
    registry.forget_all()
    with pytest.raises(StorageError, match=message) as caught:
        open_store("s3://backups/mixed-4.9.3/store", **{**server.options, **change})
    text = str(caught.value)
    assert "\n" not in text
    assert not any(secret in text for secret in (KEY, SECRET, "not-the-secret"))
    registry.forget_all()


def test_what_is_not_there_says_so(server: S3Server) -> None:
    for path in ("s3://nobucket/store", "s3://backups/nothing"):
        with pytest.raises(StoreNotFoundError):
            open_store(path, **server.options)


@pytest.mark.parametrize("how", ["replaced", "shortened", "deleted"])
def test_an_object_that_changes_is_a_named_error(server: S3Server, tmp_path: Path, how: str) -> None:
    store = archive.unpack("mixed-4.9.3", server.folder / "backups" / how)
    with open_store(f"s3://backups/{how}/store", **server.options) as opened:
        plan = opened.snapshot().plan(ScanRequest())
    registry.forget_all()
    log = min((store / "commitlog").iterdir())
    data = log.read_bytes()
    log.unlink()
    if how != "deleted":
        log.write_bytes(data if how == "replaced" else data[:1000])
    with pytest.raises(StoreChangedError, match=r"replaced|deleted") as caught:
        [list(piece.read()) for piece in plan]
    assert f"s3://backups/{how}/store/commitlog/{log.name}" in str(caught.value)


JOB = """
import json, sys
import mqstore, pyspark_mqstore
from pyspark.sql import SparkSession
endpoint, key, secret, uri = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]")
         .config("spark.ui.enabled", "false")
         .config("spark.hadoop.fs.s3a.endpoint", endpoint).config("spark.hadoop.fs.s3a.access.key", key)
         .config("spark.hadoop.fs.s3a.secret.key", secret).config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
         .getOrCreate())
def digest(frame):
    rows = frame.selectExpr("topic", "queueId", "queueOffset", "crc32(body) as crc").collect()
    return sorted([list(row) for row in rows])
options = pyspark_mqstore.storage_options(spark)
frame = spark.read.format("mqstore").option("minPartitions", 4).options(**options).load(uri)
frame.explain(True)
print("ROWS", json.dumps(digest(frame)))
print("ROWS", json.dumps(digest(pyspark_mqstore.read(spark, uri))))
view = spark.read.format("mqstore").option("view", "queues").options(**options).load(uri)
print("QUEUES", view.count())
try:
    spark.read.format("mqstore").options(**{**options, "storage.secretKey": "wrong-" + secret}).load(uri).count()
except Exception as error:
    print("ERROR", str(error))
try:
    frame.limit(1).write.format("mqstore").mode("append").save(uri)
except Exception as error:
    print("ERROR", str(error))
"""


def test_spark_reads_it_and_shows_no_secret(server: S3Server, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    uri = f"s3a://backups/{AWKWARD}/store"
    done = subprocess.run(
        [sys.executable, str(job), server.endpoint, KEY, SECRET, uri],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    read = rows_on_disk(server.folder / "backups" / AWKWARD / "store")
    expected = sorted(
        [row["topic"], row["queueId"], row["queueOffset"], zlib.crc32(row["body"])]
        for row in read.select(["topic", "queueId", "queueOffset", "body"]).to_pylist()
    )
    rows = [json.loads(line.removeprefix("ROWS ")) for line in lines if line.startswith("ROWS ")]
    assert rows == [expected, expected]
    errors = [line for line in lines if line.startswith("ERROR ")]
    assert "SignatureDoesNotMatch" in errors[0]
    assert "writes to local directories" in errors[1]
    assert SECRET not in done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr


def test_commands_read_it(server: S3Server) -> None:
    access = [f"--storage={name.removeprefix('storage.')}={value}" for name, value in server.options.items()]
    uri, local = "s3://backups/mixed-4.9.3/store", str(server.folder / "backups" / "mixed-4.9.3" / "store")
    for command in (["info"], ["ls"], ["cat", "-n", "3"], ["verify"], ["topics"]):
        calls = ([*command, uri, *access], [*command, local])
        done = [
            subprocess.run(
                [sys.executable, "-m", "command_line", *call], capture_output=True, text=True, timeout=60, check=False
            )
            for call in calls
        ]
        assert done[0].returncode == done[1].returncode == 0, done[0].stderr
        assert done[0].stdout.replace(uri, local) == done[1].stdout
