"""The location of a store: a local path, or a URI with its scheme, authority and path.

Which library reads a scheme is decided by `remote`. Source: docs/object-storage.md "Addresses".
"""

from __future__ import annotations

import os
from typing import NamedTuple

from storage_core.errors import UnsupportedFormatError

SCHEMES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "az",
    "hdfs": "hdfs", "viewfs": "viewfs",
}  # fmt: skip
"""Scheme as given → scheme of the normal form."""
NEEDS_AUTHORITY = {"s3", "gs", "abfs", "az"}
HAS_NO_USER = {"s3", "gs"}
ORIGIN_PARTS = 3
"""The parts of `s3://bucket` between slashes."""


class Address(NamedTuple):
    """The parts of a URI in its normal form; `path` has no slash at either end."""

    scheme: str
    authority: str
    path: str

    @property
    def origin(self) -> str:
        """`scheme://authority`: what one client reads."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return f"{self.origin}/{self.path}" if self.path else self.origin


def is_remote(path: str) -> bool:
    """Whether a normal path is a URI. A local one never contains `://`, because it has no two slashes in a row."""
    return "://" in path


def address_of(uri: str) -> Address:
    """The parts of a URI; names are used verbatim, nothing is percent-decoded.

    Raises UnsupportedFormatError for an unsupported scheme, for a URI without a bucket, and for one with keys.
    """
    given, _, rest = uri.partition("://")
    scheme = SCHEMES.get(given.lower())
    if scheme is None:
        raise UnsupportedFormatError(
            f"{uri}: mqstore on host {os.uname().nodename} reads local directories and {_known()}, not {given}:; "
            "copy the store to one of these, or mount it"
        )
    authority, _, path = rest.partition("/")
    if not authority and scheme in NEEDS_AUTHORITY:
        raise UnsupportedFormatError(f"{uri}: names no bucket; give it as {given}://BUCKET/path/of/the/store")
    if scheme in HAS_NO_USER and "@" in authority:
        raise UnsupportedFormatError(
            f"{given}://…@{authority.rpartition('@')[2]}: keys do not belong in a URI, which logs show; give them by "
            "the options storage.* or in the environment"
        )
    return Address(scheme, authority, "/".join(part for part in path.split("/") if part))


def normal_path(path: str) -> str:
    """The normal form of a path or URI: absolute, without `file:` or a trailing slash. Raises as `address_of`."""
    scheme, separator, rest = path.partition(":")
    if separator and scheme.lower() == "file":
        return os.path.abspath("/" + rest.lstrip("/"))
    if separator and "/" not in scheme and len(scheme) > 1 and rest.startswith("/"):
        return str(address_of(path if rest.startswith("//") else f"{scheme}:///{rest.lstrip('/')}"))
    return os.path.abspath(path)


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in SCHEMES)
