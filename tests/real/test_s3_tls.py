"""A real S3 server over TLS: who must have signed its certificate, and the error otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from storage_core import open_store
from storage_core.errors import MqStoreError, OptionError, StorageError
from storage_core.files.remote import registry
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.support.certificates import Certificates, made_authority, made_certificates
from tests.support.s3_server import KEY, SECRET, S3Server, s3_server

pytestmark = pytest.mark.real

NAME = "mixed-4.9.3"
URI = f"s3://backups/{NAME}/store"
TRUSTED_BY = ("storage.caFile", "AWS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3tls")
    archive.unpack(NAME, root / "buckets" / "backups" / NAME)
    with s3_server(root, certificates.key_store) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    registry.forget_all()
    yield
    registry.forget_all()


def options(server: S3Server, **more: str) -> dict[str, str]:
    return {**server.options, "storage.endpoint": server.secure_endpoint, "storage.timeout": "10", **more}


def rows(path: str, **given: str) -> pa.Table:
    with open_store(path, **given) as store:
        return pa.Table.from_batches(
            [batch for piece in store.snapshot().plan(ScanRequest()) for batch in piece.read()]
        )


READ = """
import json, sys
import pyarrow as pa
from storage_core import open_store
from storage_core.store import ScanRequest
with open_store(sys.argv[1], **json.load(sys.stdin)) as store:
    batches = [batch for piece in store.snapshot().plan(ScanRequest()) for batch in piece.read()]
with pa.ipc.new_stream(sys.stdout.buffer, batches[0].schema) as out:
    [out.write_batch(batch) for batch in batches]
"""


@pytest.mark.parametrize("name", TRUSTED_BY)
def test_a_trusted_certificate_reads_as_on_disk(server: S3Server, certificates: Certificates, name: str) -> None:
    """Each runs in a separate process: the library reads the environment only once."""
    named = {name: str(certificates.authority)}
    given = options(server, **{key: value for key, value in named.items() if key.startswith("storage.")})
    environment = {key: value for key, value in os.environ.items() if key not in TRUSTED_BY}
    environment |= {key: value for key, value in named.items() if not key.startswith("storage.")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", READ, URI], input=json.dumps(given).encode(), capture_output=True, timeout=120,
        check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    expected = rows(str(server.folder / "backups" / NAME / "store"))
    assert pa.ipc.open_stream(done.stdout).read_all().equals(expected)


def test_spark(server: S3Server, certificates: Certificates, spark: SparkSession) -> None:
    """Spark's workers, which are separate processes, trust the authority that the option names."""
    given = options(server, **{"storage.caFile": str(certificates.authority)})
    frame = spark.read.format("mqstore").option("minPartitions", 4)
    assert frame.options(**given).load(URI).toArrow().equals(
        spark.read.format("mqstore").option("minPartitions", 4)
        .load(str(server.folder / "backups" / NAME / "store")).toArrow()
    )  # fmt: skip


def failure(kind: type[MqStoreError], **given: str) -> str:
    with pytest.raises(kind) as caught:
        open_store(URI, **given)
    text = str(caught.value)
    assert "\n" not in text
    assert not any(secret in text for secret in (KEY, SECRET))
    return text


def test_an_unknown_authority_is_one_line_that_says_what_to_do(server: S3Server, tmp_path: Path) -> None:
    text = failure(StorageError, **options(server))
    assert text.startswith(f"StorageError: {URI}: listing it: nobody who is trusted here signed the certificate")
    assert text.endswith("storage.caFile")
    other = made_authority(tmp_path)
    assert "signed the certificate" in failure(StorageError, **options(server, **{"storage.caFile": str(other)}))


def test_a_certificate_for_another_host_is_one_line(server: S3Server, certificates: Certificates) -> None:
    elsewhere = server.secure_endpoint.replace("127.0.0.1", "localhost")
    given = options(server, **{"storage.caFile": str(certificates.authority), "storage.endpoint": elsewhere})
    assert "the certificate is for another host" in failure(StorageError, **given)


def test_https_on_http_and_http_on_https_are_one_line(server: S3Server, certificates: Certificates) -> None:
    trusted = {"storage.caFile": str(certificates.authority)}
    secure_on_plain = server.endpoint.replace("http:", "https:")
    text = failure(StorageError, **options(server, **trusted, **{"storage.endpoint": secure_on_plain}))
    assert text.startswith(f"StorageError: {URI}: listing it: the endpoint speaks http and not https")
    plain_on_secure = server.secure_endpoint.replace("https:", "http:")
    text = failure(StorageError, **options(server, **trusted, **{"storage.endpoint": plain_on_secure}))
    assert "an endpoint that wants TLS begins with https://" in text


def test_a_file_without_certificates_is_one_line(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem", tmp_path):
        text = failure(OptionError, **options(server, **{"storage.caFile": str(path)}))
        assert text.startswith("OptionError: option 'storage.caFile' = ")
