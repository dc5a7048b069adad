"""Spark's S3 settings as options of a read."""

from __future__ import annotations

import pytest

from connector.hadoop_settings import from_settings


def test_endpoint_keys_and_style_are_taken_over() -> None:
    settings = {
        "fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false", "fs.s3a.access.key": "a",
        "fs.s3a.secret.key": "b", "fs.s3a.session.token": "c", "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.path.style.access": "true",
    }  # fmt: skip
    assert from_settings(settings.get) == {
        "storage.endpoint": "http://minio:9000", "storage.accessKey": "a", "storage.secretKey": "b",
        "storage.sessionToken": "c", "storage.region": "eu-west-1", "storage.pathStyle": "true",
    }  # fmt: skip
    assert from_settings({}.get) == {}


def test_a_provider_that_is_not_known_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    name = "fs.s3a.aws.credentials.provider"
    assert from_settings({name: "org.x.AnonymousAWSCredentialsProvider"}.get) == {"storage.anonymous": "true"}
    assert capsys.readouterr().err == ""
    assert from_settings({name: "com.example.Vault"}.get) == {}
    assert "com.example.Vault was not taken over" in capsys.readouterr().err
