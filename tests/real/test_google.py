"""Stores in buckets over Google's protocol: the same tables as on disk, also by Spark; errors name changed objects.

`MQSTORE_GOOGLE=1` runs it (`make test-real-full`): it needs Go, which installs an emulator. Copies to a bucket go to
S3Proxy, which implements the part of the protocol that it shares with S3: the emulator accepts no objects over it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from storage_core import copy_store, find_stores, open_store
from storage_core.errors import StoreChangedError
from storage_core.files.remote import registry
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.copied_stores import contents
from tests.support.google_server import NO_TOKENS, GoogleServer, google_server
from tests.support.s3_server import s3_server

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "MQSTORE_GOOGLE" not in os.environ, reason="brings an emulator by Go; make test-real-full sets MQSTORE_GOOGLE"
    ),
]

NAMES = tuple(archive.names())
FOLDER = "a b/%LMQ% ü"


@pytest.fixture(scope="module")
def server() -> Iterator[GoogleServer]:
    registry.forget_all()
    with google_server("backups") as running:
        yield running
    registry.forget_all()


def table(path: str, request: ScanRequest, **options: str) -> pa.Table:
    with open_store(path, **options) as store:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))


def files(directory: Path) -> dict[str, bytes]:
    """The contents without times and empty folders, which were not recorded when the objects were added."""
    return {name: found[0] for name, found in contents(directory).items() if found is not None}


@pytest.mark.parametrize("name", NAMES)
def test_rocketmq_stores_are_read_and_come_down(server: GoogleServer, name: str, tmp_path: Path) -> None:
    store, uri = archive.unpack(name, tmp_path), f"gs://backups/{FOLDER}/{name}/store"
    server.add_folder(store, f"{FOLDER}/{name}/store")
    for scan in Scan:
        request = ScanRequest(scan=scan, mode=Mode.DROPMALFORMED)
        assert table(uri, request, **server.options).equals(table(str(store), request))
    copy_store(uri, str(tmp_path / "down"), **server.options)
    assert files(tmp_path / "down") == files(store)
    assert find_stores(f"gs://backups/a*/%LMQ%*/{name}/st?re", **server.options) == [uri]


def test_a_vhost(server: GoogleServer, tmp_path: Path) -> None:
    vhost = golden.unpack("s1_mixed_clean_idle", tmp_path / "made") / golden.DEFAULT_VHOST
    server.add_folder(vhost, f"vhosts/{vhost.name}")
    request = ScanRequest(mode=Mode.DROPMALFORMED)
    uri = f"gs://backups/vhosts/{vhost.name}"
    assert table(uri, request, **server.options).equals(table(str(vhost), request))


def test_spark(server: GoogleServer, spark: SparkSession, tmp_path: Path) -> None:
    store = archive.unpack("mixed-5.3.3", tmp_path)
    server.add_folder(store, "spark/store")
    frame = spark.read.format("mqstore").options(**server.options).option("minPartitions", 4)
    assert (
        frame.load("gs://backups/spark/store")
        .toArrow()
        .equals(spark.read.format("mqstore").option("minPartitions", 4).load(str(store)).toArrow())
    )


def test_an_object_in_the_place_of_another_is_named(server: GoogleServer, tmp_path: Path) -> None:
    store = archive.unpack("mixed-5.3.3", tmp_path)
    server.add_folder(store, "changed/store")
    with open_store("gs://backups/changed/store", **server.options) as opened:
        plan = opened.snapshot().plan(ScanRequest())
    registry.forget_all()
    log = min((store / "commitlog").iterdir())
    server.add(f"changed/store/commitlog/{log.name}", bytes(log.stat().st_size))
    with pytest.raises(StoreChangedError, match="the object was replaced while the store was read"):
        [list(piece.read()) for piece in plan]


def test_copies_there_and_back(tmp_path: Path) -> None:
    store, uri = archive.unpack("mixed-4.9.3", tmp_path), f"gs://backups/{FOLDER}/store"
    (tmp_path / "buckets" / "backups").mkdir(parents=True)
    credentials = tmp_path / "credentials.json"
    credentials.write_text(json.dumps(NO_TOKENS))
    with s3_server(tmp_path, wants_keys=False) as running:
        options = {"storage.endpoint": running.endpoint, "storage.credentialsFile": str(credentials)}
        copy_store(str(store), uri, **options)
        request = ScanRequest(mode=Mode.DROPMALFORMED)
        assert table(uri, request, **options).equals(table(str(store), request))
        copy_store(uri, str(tmp_path / "down"), **options)
    assert contents(tmp_path / "down") == contents(store)
    registry.forget_all()
