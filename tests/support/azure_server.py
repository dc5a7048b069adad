"""Azure Blob Storage for tests: Azurite, Microsoft's emulator, brought by npm into a cache of this checkout."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

PACKAGE = "azurite@3.37.0"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "azurite"
PROGRAM = CACHE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's own, which everybody knows."""
API = "2021-08-06"


@contextmanager
def azure_server(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """Runs while the block does, with one container; the options of a read."""
    if not PROGRAM.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        call = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(CACHE), PACKAGE]
        subprocess.run(call, check=True, timeout=300, cwd=CACHE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call = ["node", str(PROGRAM), "--location", str(folder), "--blobPort", str(port), "--silent"]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    try:
        _make_container(endpoint, port, container)
        yield {"storage.endpoint": endpoint, "storage.account": ACCOUNT, "storage.accessKey": KEY}
    finally:
        process.kill()  # it waits for connections that clients keep
        process.wait(30)


def _make_container(endpoint: str, port: int, name: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.2)
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date, "x-ms-version": API, "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }  # fmt: skip
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201
