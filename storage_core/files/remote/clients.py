"""Creates obstore's clients of buckets and containers from the options `storage.*`.

What the options leave out, the library takes from the environment, then from the machine's identity. Source:
docs/object-storage.md "Access".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any

from storage_core.errors import OptionError
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.small_file import read_at

LARGEST_FILE = 4 << 20
"""Larger than any file of certificates or credentials."""
LONGEST_CONNECT_S = 10.0
CERTIFICATES = "names a file of certificates (PEM), on every machine that reads"
CREDENTIALS = "names a JSON file of Google credentials, on every machine that reads"
CREDENTIAL_FILES = {"": "service_account_path", "service_account": "service_account_path",
                    "authorized_user": "application_credentials"}  # fmt: skip
"""Type of a Google credentials file → the library's setting for its path; emulators' files have no type."""


def client(stores: ModuleType, address: Address, access: Access) -> Any:
    """The client of an address. Raises OptionError for files that cannot be used, and errors of the library."""
    endpoint = access.get("endpoint")
    common: dict[str, Any] = {
        "client_options": _without_none(
            {
                "timeout": timedelta(seconds=access.timeout_s),
                "connect_timeout": timedelta(seconds=min(access.timeout_s, LONGEST_CONNECT_S)),
                "allow_http": is_plain(access) or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
                "root_certificate": _certificates(access, address.scheme),
            }
        ),
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=access.timeout_s)},
    }
    if address.scheme == "s3":
        return stores.S3Store(address.authority, config=_s3(access, endpoint), **common)
    if address.scheme == "gs":
        return stores.GCSStore(address.authority, config=_gs(access, endpoint), **common)
    container, _, host = address.authority.partition("@")
    return stores.AzureStore(container, config=_azure(access, endpoint, host), **common)


def is_plain(access: Access) -> bool:
    """Whether the given endpoint is accessed without TLS."""
    return (access.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")).lower().startswith("http://")


def _certificates(access: Access, scheme: str) -> bytes | None:
    """Certificates to trust besides the system's, as PEM. Raises OptionError if the file has none."""
    name, path = "storage.caFile", access.get("caFile")
    if not path and scheme == "s3":
        name, path = "AWS_CA_BUNDLE", os.environ.get("AWS_CA_BUNDLE")
    if not path or is_plain(access):
        return None
    content = _content(name, path, CERTIFICATES)
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise OptionError(name, path, CERTIFICATES)
    return content


def _content(name: str, path: str, advice: str) -> bytes:
    try:
        return read_at(path, LARGEST_FILE)
    except OSError as error:
        raise OptionError(name, path, f"cannot be read: {error.strerror}; it {advice}") from None


def _without_none(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in pairs.items() if value is not None}


def _s3(access: Access, endpoint: str | None) -> dict[str, Any]:
    return _without_none(
        {
            "endpoint": endpoint,
            "region": access.get("region"),
            "access_key_id": access.get("accessKey"),
            "secret_access_key": access.get("secretKey"),
            "session_token": access.get("sessionToken"),
            "skip_signature": True if access.flag("anonymous") else None,
            "virtual_hosted_style_request": not access.flag("pathStyle", default=True),
        }
    )


def _gs(access: Access, endpoint: str | None) -> dict[str, Any]:
    return _without_none(
        {
            **_google_credentials(access.get("credentialsFile")),
            "base_url": endpoint,
            "skip_signature": True if access.flag("anonymous") else None,
        }
    )


def _google_credentials(path: str | None) -> dict[str, str]:
    """The setting for a credentials file. Raises OptionError if the library cannot use it."""
    if path is None:
        return {}
    name = "storage.credentialsFile"
    try:
        kind = str(json.loads(_content(name, path, CREDENTIALS)).get("type", ""))
    except (ValueError, AttributeError):
        raise OptionError(name, path, CREDENTIALS) from None
    if kind not in CREDENTIAL_FILES:
        raise OptionError(name, path, f"has credentials of type {kind}; those of a service account or a user are read")
    return {CREDENTIAL_FILES[kind]: path}


def _azure(access: Access, endpoint: str | None, host: str) -> dict[str, Any]:
    return _without_none(
        {
            "account_name": access.get("account") or host.partition(".")[0] or None,
            "account_key": access.get("accessKey"),
            "sas_token": access.get("sasToken"),
            "bearer_token": access.get("sessionToken"),
            "endpoint": endpoint,
            "skip_signature": True if access.flag("anonymous") else None,
        }
    )
