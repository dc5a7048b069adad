"""Stores in Azure's emulator: the same tables as on disk, copies there and back, one-line errors for a wrong key.

`MQSTORE_AZURE=1` runs it (`make test-real-full`): it needs npm, which installs the emulator.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from storage_core import copy_store, find_stores, open_store
from storage_core.errors import StorageError
from storage_core.files.remote import registry
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.azure_server import HOST, KEY, azure_server, bearer_token, shared_access
from tests.support.certificates import made_certificates
from tests.support.copied_stores import contents

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "MQSTORE_AZURE" not in os.environ, reason="brings Azurite by npm; make test-real-full sets MQSTORE_AZURE"
    ),
]

NAMES = ("mixed-4.9.3", "mixed-5.3.3", "shop-4.9.3", "damaged-flipped-body-abort-4.9.3")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    registry.forget_all()
    with azure_server(tmp_path_factory.mktemp("azure"), "backups") as given:
        yield given
    registry.forget_all()


def table(path: str, request: ScanRequest, **options: str) -> pa.Table:
    with open_store(path, **options) as store:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))


@pytest.mark.parametrize("name", NAMES)
def test_rocketmq_stores_go_up_are_read_and_come_down(options: dict[str, str], name: str, tmp_path: Path) -> None:
    store, uri = archive.unpack(name, tmp_path), f"az://backups/a b/%LMQ% ü/{name}/store"
    copy_store(str(store), uri, **options)
    for scan in Scan:
        request = ScanRequest(scan=scan, mode=Mode.DROPMALFORMED)
        assert table(uri, request, **options).equals(table(str(store), request))
    copy_store(uri, str(tmp_path / "down"), **options)
    assert contents(tmp_path / "down") == contents(store)
    assert find_stores(f"az://backups/a*/%LMQ%*/{name}/st?re", **options) == [uri]


def test_a_vhost(options: dict[str, str], tmp_path: Path) -> None:
    vhost = golden.unpack("s1_mixed_clean_idle", tmp_path / "made") / golden.DEFAULT_VHOST
    uri = f"az://backups/vhosts/{vhost.name}"
    copy_store(str(vhost), uri, **options)
    request = ScanRequest(mode=Mode.DROPMALFORMED)
    assert table(uri, request, **options).equals(table(str(vhost), request))


def test_the_long_form_of_an_address_and_spark(options: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """The account is taken from the host in the URI."""
    store, uri = archive.unpack("mixed-5.3.3", tmp_path), f"abfss://backups@{HOST}/spark/store"
    given = {name: value for name, value in options.items() if name != "storage.account"}
    copy_store(str(store), uri, **given)
    assert table(uri, ScanRequest(), **given).equals(table(str(store), ScanRequest()))
    frame = spark.read.format("mqstore").option("minPartitions", 4)
    assert (
        frame.options(**given)
        .load(uri)
        .toArrow()
        .equals(spark.read.format("mqstore").option("minPartitions", 4).load(str(store)).toArrow())
    )


def test_a_shared_access_signature(options: dict[str, str], tmp_path: Path) -> None:
    store, uri = archive.unpack("mixed-4.9.3", tmp_path), "az://backups/shared/store"
    copy_store(str(store), uri, **options)
    registry.forget_all()
    given = {name: value for name, value in options.items() if name != "storage.accessKey"}
    token = shared_access()
    found = table(uri, ScanRequest(), **given, **{"storage.sasToken": token})
    assert found.equals(table(str(store), ScanRequest()))
    registry.forget_all()
    wrong = token.replace("sp=rl", "sp=rwl")
    with pytest.raises(StorageError, match="the key or token is wrong") as caught:
        open_store(uri, **given, **{"storage.sasToken": wrong})
    assert token.rpartition("sig=")[2] not in str(caught.value)
    registry.forget_all()


def test_tls_and_a_bearer_token(tmp_path: Path) -> None:
    store, uri = archive.unpack("mixed-4.9.3", tmp_path), "az://backups/borne/store"
    certificates = made_certificates(tmp_path)
    registry.forget_all()
    with azure_server(tmp_path, "backups", certificates) as options:
        with pytest.raises(StorageError, match=r"nobody who is trusted here signed the certificate; name its CA by"):
            open_store(uri, **options, **{"storage.timeout": "10"})
        trusting = {**options, "storage.caFile": str(certificates.authority)}
        copy_store(str(store), uri, **trusting)
        registry.forget_all()
        borne = {name: value for name, value in trusting.items() if name != "storage.accessKey"}
        found = table(uri, ScanRequest(), **borne, **{"storage.sessionToken": bearer_token()})
        assert found.equals(table(str(store), ScanRequest()))
    registry.forget_all()


def test_a_wrong_key_is_one_line_without_it(options: dict[str, str]) -> None:
    wrong = base64.b64encode(b"not the key").decode()
    registry.forget_all()
    with pytest.raises(StorageError) as caught:
        open_store("az://backups/x", **{**options, "storage.accessKey": wrong})
    text = str(caught.value)
    assert "\n" not in text
    assert "right to read or to list" in text
    assert not any(secret in text for secret in (KEY, wrong))
    registry.forget_all()
