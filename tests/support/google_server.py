"""Google Cloud Storage for tests: fake-gcs-server, which Go installs into a cache of this checkout.

It accepts objects over Google's JSON API, serves them over the XML API, and ignores the conditions of a read.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.support.cache import CACHE
from tests.support.free_ports import free_port

MODULE = "github.com/fsouza/fake-gcs-server@v1.56.1"
FOLDER = CACHE / "google"
PROGRAM = FOLDER / "fake-gcs-server"
NO_TOKENS = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": "", "gcs_base_url": ""}
"""A credentials file for servers that need none: otherwise obstore requests a token from Google, even anonymously."""


@dataclass(frozen=True)
class GoogleServer:
    """A running server with one bucket."""

    endpoint: str
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        """The options of a read."""
        return {"storage.endpoint": self.endpoint, "storage.anonymous": "true"}

    def add(self, path: str, data: bytes) -> None:
        """Puts an object, replacing an existing one."""
        where = f"{self.endpoint}/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={quote(path, safe='')}"
        _post(where, data, "application/octet-stream")

    def add_folder(self, folder: Path, prefix: str) -> None:
        """Puts every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.add(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


@contextmanager
def google_server(bucket: str) -> Iterator[GoogleServer]:
    """Runs the server with one empty bucket while the block runs."""
    if not PROGRAM.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(FOLDER)}
        subprocess.run(["go", "install", MODULE], check=True, timeout=600, env=environment)
    port = free_port()
    address = f"127.0.0.1:{port}"
    call = [
        str(PROGRAM), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-public-host",
        address, "-log-level", "error",
    ]  # fmt: skip
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://{address}/_internal/healthcheck")
        _post(
            f"http://{address}/storage/v1/b?project=mqstore", json.dumps({"name": bucket}).encode(), "application/json"
        )
        yield GoogleServer(f"http://{address}", bucket)
    finally:
        process.terminate()
        process.wait(30)


def _post(where: str, data: bytes, kind: str) -> None:
    request = urllib.request.Request(where, data, {"Content-Type": kind}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def _wait(where: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError):
            urllib.request.urlopen(where, timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError("the server does not answer")
