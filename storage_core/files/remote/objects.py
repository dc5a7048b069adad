"""S3, Google Cloud Storage and Azure through obstore, an extra of this package: `mqstore[remote]`.

Clients are made in the process that reads: obstore's threads do not survive a fork. No text of the library is shown,
for some hold keys; what is shown is its kind and the code of the other side's answer.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

from storage_core.errors import MqStoreError, OptionError
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.remote.back_end import BackEnd, Changed, Found, Gone, Refused, Unavailable
from storage_core.files.small_file import read_start

MISSING = 'reading object storage needs obstore: pip install "mqstore[remote]", on every machine that reads'
FORKED = "this process was forked from one that had read object storage; start it by spawn instead"
CHUNK = 1000
PART_SIZE, PARTS_AT_ONCE = 8 << 20, 4
MOST_CERTIFICATES = 4 << 20
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS = re.compile(r"\b([345]\d\d) (?:Moved|Bad|Unauth|Forbid|Not|Conflict|Temporary|Permanent)")
BARE_REDIRECT = "Received redirect without LOCATION"
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_HINTS = {
    "InvalidAccessKeyId": "there is no such access key; check storage.accessKey or the environment",
    "SignatureDoesNotMatch": "the secret key does not fit; check storage.secretKey or the environment",
    "ExpiredToken": "the session token has expired; get a new one",
    "InvalidToken": "the session token is wrong; get a new one",
    "AccessDenied": "the right to read or to list it is missing (s3:GetObject, s3:ListBucket)",
    "AuthorizationFailure": "the key or token is wrong, or the right to read or to list it is missing",
    "AuthenticationFailed": "the key or token is wrong; check the options or the environment",
    "AuthorizationPermissionMismatch": "the right to read or to list it is missing (Storage Blob Data Reader)",
    "PermanentRedirect": "the bucket lies in another region; set storage.region",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set storage.region",
}

_first_process: list[int] = []


def connect(address: Address, access: Access) -> BackEnd:
    """The bucket or container of an address. Raises MqStoreError without obstore, and in a forked process."""
    try:
        obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError:
        raise MqStoreError(f"{address.origin}: {MISSING}") from None
    if not _first_process:
        _first_process.append(os.getpid())
    try:
        return Objects(obstore, _client(stores, address, access), _is_plain(access))
    except (importlib.import_module("obstore.exceptions").BaseError, OSError, ValueError, TypeError) as error:
        raise MqStoreError(
            f"{address.origin}: no client for it ({_said(error)}); check the options storage.*"
        ) from None


def _client(stores: ModuleType, address: Address, access: Access) -> Any:
    endpoint = access.get("endpoint")
    common: dict[str, Any] = {
        "client_options": _given(
            {
                "timeout": timedelta(seconds=access.timeout_s),
                "connect_timeout": timedelta(seconds=min(access.timeout_s, 10)),
                "allow_http": _is_plain(access) or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
                "root_certificate": _certificates(access, address.scheme),
            }
        ),
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=access.timeout_s)},
    }
    if address.scheme == "s3":
        return stores.S3Store(address.authority, config=_s3(access, endpoint), **common)
    if address.scheme == "gs":
        return stores.GCSStore(address.authority, config=_gs(access), **common)
    container, _, host = address.authority.partition("@")
    return stores.AzureStore(container, config=_azure(access, endpoint, host), **common)


def _is_plain(access: Access) -> bool:
    """Whether the endpoint that was given is asked without TLS."""
    return (access.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")).lower().startswith("http://")


def _certificates(access: Access, scheme: str) -> bytes | None:
    """What is trusted besides the system's certificates, as PEM. Raises OptionError where the file has none."""
    name, path = "storage.caFile", access.get("caFile")
    if not path and scheme == "s3":
        name, path = "AWS_CA_BUNDLE", os.environ.get("AWS_CA_BUNDLE")
    if not path or _is_plain(access):
        return None
    try:
        content = read_start(path, MOST_CERTIFICATES)
    except OSError as error:
        raise OptionError(name, path, f"cannot be read: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise OptionError(name, path, "names a file of certificates (PEM), on every machine that reads")
    return content


def _given(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in pairs.items() if value is not None}


def _s3(access: Access, endpoint: str | None) -> dict[str, Any]:
    return _given(
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


def _gs(access: Access) -> dict[str, Any]:
    return _given(
        {
            "service_account_path": access.get("credentialsFile"),
            "base_url": access.get("endpoint"),
            "skip_signature": True if access.flag("anonymous") else None,
        }
    )


def _azure(access: Access, endpoint: str | None, host: str) -> dict[str, Any]:
    return _given(
        {
            "account_name": access.get("account") or host.partition(".")[0] or None,
            "account_key": access.get("accessKey"),
            "sas_token": access.get("sasToken"),
            "bearer_token": access.get("sessionToken"),
            "endpoint": endpoint,
            "skip_signature": True if access.flag("anonymous") else None,
        }
    )


class Objects(BackEnd):
    """One bucket or container."""

    def __init__(self, obstore: ModuleType, client: Any, is_plain: bool) -> None:
        self._obstore, self._client, self._is_plain = obstore, client, is_plain

    def walk(self, prefix: str) -> Iterator[list[Found]]:
        """Everything below a folder: one list a request."""
        self._check_process()
        answers = self._translated(lambda: iter(self._obstore.list(self._client, prefix or None, chunk_size=CHUNK)))
        while (answer := self._translated(lambda: next(answers, None))) is not None:
            yield [_found(meta) for meta in answer]

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """Folders and objects right in a folder."""
        self._check_process()
        answer = self._translated(lambda: self._obstore.list_with_delimiter(self._client, prefix or None))
        names = [path.rstrip("/").rpartition("/")[2] for path in answer["common_prefixes"]]
        return names, [_found(meta) for meta in answer["objects"]]

    def get(self, found: Found, start: int, stop: int) -> memoryview:
        """A range of an object, if it still has its ETag."""
        self._check_process()
        options: dict[str, Any] = {"range": (start, stop)}
        if found.etag:
            options["if_match"] = found.etag
        else:  # a server that lists none: whole seconds of the time must do, and the length
            modified = datetime.fromtimestamp(found.modified_ns // 10**9 + 1, UTC)
            options["if_unmodified_since"] = modified

        def ask() -> memoryview:
            answer = self._obstore.get(self._client, found.path, options=options)
            if answer.meta["size"] != found.size:
                raise Changed
            return memoryview(answer.bytes())

        data: memoryview = self._translated(ask)
        return data

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        """Writes an object in parts; in one request where it is small, or must be new."""
        self._check_process()
        whole = only_new or size <= PART_SIZE
        data: Any = b"".join(source()) if whole else source()
        how: dict[str, Any] = {"mode": "create" if only_new else "overwrite", "use_multipart": not whole}
        parts = {"chunk_size": PART_SIZE, "max_concurrency": PARTS_AT_ONCE}
        self._translated(lambda: self._obstore.put(self._client, path, data, **how, **parts))

    def _check_process(self) -> None:
        if _first_process[0] != os.getpid():
            raise Refused(FORKED)

    def _translated(self, ask: Callable[[], Any]) -> Any:
        kinds = importlib.import_module("obstore.exceptions")
        try:
            return ask()
        except FileNotFoundError:
            raise Gone from None
        except (kinds.PreconditionError, kinds.AlreadyExistsError, kinds.NotModifiedError):
            raise Changed from None
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            raise Refused(_said(error)) from None
        except (kinds.InvalidPathError, kinds.NotSupportedError) as error:
            raise Refused(_said(error)) from None
        except (kinds.BaseError, OSError, ValueError) as error:
            text = str(error)
            code = _CODE.search(text)
            if code is not None and code[1] in NO_BUCKET:
                raise Gone from None
            if "416 Range" in text:
                raise Changed from None
            if (code is not None and code[1] in _HINTS) or any(sign in text for sign in _FOR_GOOD):
                raise Refused(_said(error)) from None
            wants_tls = code is None and self._is_plain and any(sign in text for sign in _SIGNS_OF_TLS)
            raise Unavailable(_said(error) + (WANTS_TLS if wants_tls else "")) from None


def _said(error: Exception) -> str:
    """What an error says without what it may quote: the code of the answer, or its kind."""
    text = str(error)
    if code := _CODE.search(text):
        return f"{code[1]}: {_HINTS[code[1]]}" if code[1] in _HINTS else code[1]
    for sign, said in _SIGNS.items():
        if sign in text:
            return said
    status = _STATUS.search(text)
    return f"the answer was {status[1]}" if status else type(error).__name__


NOT_SIGNED = "nobody who is trusted here signed the certificate; name its CA by storage.caFile"
_SIGNS = {
    "timed out": "it timed out",
    "TimedOut": "it timed out",
    "dns error": "there is no host of that name",
    "Connection refused": "nobody listens there",
    "ConnectionRefused": "nobody listens there",
    "NotValidForName": "the certificate is for another host than that of the endpoint",
    "UnknownIssuer": NOT_SIGNED,
    "BadSignature": NOT_SIGNED,
    "ExpiredContext": "the certificate has expired",
    "InvalidCertificate": "the certificate is not to be trusted",
    "InvalidContentType": "the endpoint speaks http and not https",
    "connection closed": "the connection was closed",
    "IncompleteMessage": "the connection was closed",
    "ConnectionReset": "the connection was reset",
    "Parse(": "the answer was not HTTP",
    "error sending request": "the connection failed",
    BARE_REDIRECT: _HINTS["PermanentRedirect"],
    "401 Unauthorized": "the key or token is wrong or missing",
    "403 Forbidden": _HINTS["AccessDenied"],
    "301 Moved": _HINTS["PermanentRedirect"],
    "503 Service": "the other side is too busy (503)",
    "500 Internal": "the other side failed (500)",
    "error decoding response body": "the answer broke off",
    "IncompleteBody": "the answer broke off",
}
_FOR_GOOD = (BARE_REDIRECT, "InvalidCertificate", "InvalidContentType")
WANTS_TLS = " (an endpoint that wants TLS begins with https://)"
_SIGNS_OF_TLS = ("IncompleteMessage", "Parse(", "status code: 400 Bad Request")


def _found(meta: Mapping[str, Any]) -> Found:
    modified = meta["last_modified"]
    return Found(meta["path"], meta["size"], meta.get("e_tag") or "", int(modified.timestamp() * 1e6) * 1000)
