"""Access to stores on S3, Google and Azure: the errors for missing or invalid credentials."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import (
    MqStoreError,
    OptionError,
    StorageError,
    StoreChangedError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from storage_core.files.remote import registry, requests
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.support.http_bucket import HttpBucket, http_bucket

SECRET = "openSesameSecret"
NAME = "mixed-5.3.3"
FOLDER = "a b/%LMQ% ü/store"
URI = f"gs://backups/{FOLDER}"
AZURE = "abfss://backups@shop.dfs.core.windows.net/store"
ELSEWHERE = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE",
)  # fmt: skip
ANYBODY = "storage.anonymous=true reads what everybody may read"


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment without credentials, on a machine that no provider recognises."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        for name in ELSEWHERE:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{nobody}")
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, nobody)
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"http://{nobody}/metadata/identity/oauth2/token")
        monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
        registry.forget_all()
        yield
    registry.forget_all()


@pytest.fixture
def bucket() -> Iterator[HttpBucket]:
    with http_bucket() as made:
        yield made


def rows(path: str, **options: str) -> pa.Table:
    with open_store(path, **options) as store:
        plan = store.snapshot().plan(ScanRequest())
        return pa.Table.from_batches([batch for piece in plan for batch in piece.read()])


def failure(uri: str, kind: type[MqStoreError], **options: str) -> str:
    with pytest.raises(kind) as caught:
        open_store(uri, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("s3://backups/store", "storage.accessKey and storage.secretKey, or AWS_ACCESS_KEY_ID"),
        ("gs://backups/store", "storage.credentialsFile, or GOOGLE_APPLICATION_CREDENTIALS"),
        (AZURE, "storage.accessKey or storage.sasToken, or AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_no_credentials_are_one_line_at_once(bucket: HttpBucket, uri: str, names: str) -> None:
    endpoint = bucket.options["storage.endpoint"]
    text = failure(uri, StorageError, **{"storage.endpoint": endpoint, "storage.region": "us-east-1"})
    assert ": listing it: no credentials are given, and this machine has no identity that may read it; set " in text
    assert names in text
    assert text.endswith(ANYBODY)
    assert bucket.asked == []


def test_a_profile_of_aws_is_not_read(bucket: HttpBucket, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\naws_access_key_id=k\naws_secret_access_key={SECRET}\n")
    endpoint = bucket.options["storage.endpoint"]
    text = failure("s3://backups/store", StorageError, **{"storage.endpoint": endpoint, "storage.region": "us-east-1"})
    assert "(profiles in ~/.aws are not read)" in text
    assert bucket.asked == []


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("az://backups/store", {}, "the URI names no account; give storage.account, or abfss://CONTAINER@ACCOUNT."),
        (AZURE, {"storage.accessKey": f"{SECRET}!"}, "storage.accessKey is no key of an account, which is base64"),
        (AZURE, {"storage.sasToken": SECRET}, "storage.sasToken is no shared access signature"),
        ("s3://backups/store", {"storage.accessKey": "key"}, "an access key was given without its secret"),
        ("s3://backups/store", {"storage.secretKey": SECRET}, "a secret key was given without its id"),
    ],
)
def test_options_that_do_not_do_are_one_line(uri: str, options: dict[str, str], message: str) -> None:
    text = failure(uri, StorageError, **{"storage.region": "us-east-1"}, **options)
    assert message in text
    assert text.endswith("check the options storage.*")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "': cannot be read: No such file or directory; it names a JSON file of Google credentials, on every"),
        ("nothing", "': names a JSON file of Google credentials, on every machine that reads"),
        ("[]", "': names a JSON file of Google credentials, on every machine that reads"),
        ('{"type": "external_account"}', "': has credentials of type external_account; those of a service account or"),
        ('{"type": {}}', "': has credentials of type {}; those of a service account or a user are read"),
    ],
)
def test_a_file_without_credentials_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "credentials.json"
    if content is not None:
        path.write_text(content)
    text = failure("gs://backups/store", OptionError, **{"storage.credentialsFile": str(path)})
    assert text.startswith("OptionError: option 'storage.credentialsFile' = '/")
    assert message in text


def test_a_service_account_without_a_key_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    broken = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
    account = {"type": "service_account", "client_email": "a@b", "private_key_id": "k", "private_key": broken}
    path.write_text(json.dumps(account))
    text = failure("gs://backups/store", StorageError, **{"storage.credentialsFile": str(path)})
    assert "the private key in the credentials file cannot be read" in text
    del account["private_key"]
    path.write_text(json.dumps(account))
    text = failure("gs://backups/store", StorageError, **{"storage.credentialsFile": str(path)})
    assert "the credentials file is none of a service account or a user" in text


def google(bucket: HttpBucket) -> dict[str, str]:
    return {"storage.endpoint": bucket.options["storage.endpoint"], "storage.anonymous": "true"}


def test_a_store_in_a_bucket_of_googles(bucket: HttpBucket, tmp_path: Path) -> None:
    """Google's protocol for objects and listings is that of S3; errors about missing rights name Google's rights."""
    store = archive.unpack(NAME, tmp_path)
    bucket.add_folder(store, FOLDER)
    assert rows(URI, **google(bucket)).equals(rows(str(store)))
    assert find_stores("gs://backups/a b", **google(bucket)) == [URI]
    assert "there is no such bucket" in failure("gs://nobucket/store", StoreNotFoundError, **google(bucket))
    nothing = failure("gs://backups/nothing", StoreNotFoundError, **google(bucket))
    assert nothing.endswith("gs://backups/nothing: there is nothing at this address; check it")
    bucket.fault = lambda kind, path: "AccessDenied" if kind == "list" else ""
    registry.forget_all()
    refused = failure(URI, StorageError, **google(bucket))
    assert refused.endswith("the right to read or to list it is missing (storage.objects.get, storage.objects.list)")


def test_a_bucket_of_googles_that_changes_is_named(bucket: HttpBucket, tmp_path: Path) -> None:
    bucket.add_folder(archive.unpack(NAME, tmp_path), FOLDER)
    with open_store(URI, **google(bucket)) as store:
        plan = store.snapshot().plan(ScanRequest())
    registry.forget_all()
    path = next(path for path in sorted(bucket.objects) if "/commitlog/" in path)
    bucket.objects[path] = bytes(len(bucket.objects[path]))
    with pytest.raises(StoreChangedError, match="the object was replaced while the store was read"):
        [list(piece.read()) for piece in plan]


@pytest.mark.parametrize("name", ["a\tb", "a/../b"])
def test_a_name_that_the_client_refuses_is_one_line(bucket: HttpBucket, name: str) -> None:
    refused = failure(f"gs://backups/{name}", StorageError, **google(bucket))
    assert "which the client cannot ask for" in refused
    assert bucket.asked == []


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs"])
def test_keys_in_a_uri_are_not_shown(scheme: str) -> None:
    refused = failure(f"{scheme}://KEY:{SECRET}@backups/store", UnsupportedFormatError)
    assert f"{scheme}://…@backups: keys do not belong in a URI" in refused
    assert SECRET not in refused
