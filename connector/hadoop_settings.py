"""Translates the S3 settings of a Spark session, `spark.hadoop.fs.s3a.*`, into the options `storage.*` of a read.

Source: docs/object-storage.md "Access".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connector.errors import warn

PREFIX = "fs.s3a."
SETTINGS = {
    "endpoint": "storage.endpoint",
    "endpoint.region": "storage.region",
    "access.key": "storage.accessKey",
    "secret.key": "storage.secretKey",
    "session.token": "storage.sessionToken",
    "path.style.access": "storage.pathStyle",
}
PROVIDER, TLS = "aws.credentials.provider", "connection.ssl.enabled"
KNOWN_PROVIDERS = (
    "SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider", "AnonymousAWSCredentialsProvider",
    "EnvironmentVariableCredentialsProvider", "DefaultCredentialsProvider", "DefaultAWSCredentialsProviderChain",
    "InstanceProfileCredentialsProvider", "IAMInstanceCredentialsProvider", "WebIdentityTokenFileCredentialsProvider",
    "ContainerCredentialsProvider",
)  # fmt: skip


def storage_options(spark: Any) -> dict[str, str]:
    """The options `storage.*` for the session's S3 settings; empty if it has none.

    Warns of a credentials provider that cannot be translated.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    return from_settings(hadoop.get)


def from_settings(get: Callable[[str], str | None]) -> dict[str, str]:
    """As `storage_options`, for a function that returns a Hadoop setting by name."""
    found = {}
    for name, option in SETTINGS.items():
        value = (get(PREFIX + name) or "").strip()
        if value and (name, value) != ("path.style.access", "false"):
            found[option] = value
    if endpoint := found.get("storage.endpoint"):
        plain = (get(PREFIX + TLS) or "true").strip().lower() == "false"
        found["storage.endpoint"] = endpoint if "://" in endpoint else f"{'http' if plain else 'https'}://{endpoint}"
    for provider in filter(None, (each.strip() for each in (get(PREFIX + PROVIDER) or "").split(","))):
        kind = provider.rpartition(".")[2]
        if kind == "AnonymousAWSCredentialsProvider":
            found["storage.anonymous"] = "true"
        elif kind not in KNOWN_PROVIDERS:
            warn(f"{PREFIX}{PROVIDER}: {provider} was not taken over; give keys by storage.* or the environment")
    return found
