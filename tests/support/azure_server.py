"""Azure Blob Storage for tests: Azurite, Microsoft's emulator, which npm installs into a cache of this checkout."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from tests.support.cache import CACHE
from tests.support.certificates import PASSWORD, Certificates
from tests.support.free_ports import free_port

PACKAGE = "azurite@3.37.0"
FOLDER = CACHE / "azurite"
PROGRAM = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's well-known account key."""
API = "2021-08-06"


HOST = f"{ACCOUNT}.dfs.core.windows.net"
READ_AND_LIST = "rl"


@contextmanager
def azure_server(folder: Path, container: str, certificates: Certificates | None = None) -> Iterator[dict[str, str]]:
    """Runs the emulator with one container while the block runs; yields the options of a read. With certificates it
    uses TLS and also accepts bearer tokens.
    """
    if not PROGRAM.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        call = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(FOLDER), PACKAGE]
        subprocess.run(call, check=True, timeout=300, cwd=FOLDER)
    port = free_port()
    call = ["node", str(PROGRAM), "--location", str(folder), "--blobPort", str(port), "--silent"]
    if certificates is not None:
        call += ["--cert", str(certificates.key_store), "--pwd", PASSWORD, "--oauth", "basic"]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"{'http' if certificates is None else 'https'}://127.0.0.1:{port}/{ACCOUNT}"
    trust = None if certificates is None else ssl.create_default_context(cafile=certificates.authority)
    try:
        _make_container(endpoint, port, container, trust)
        yield {"storage.endpoint": endpoint, "storage.account": ACCOUNT, "storage.accessKey": KEY}
    finally:
        process.kill()  # a graceful stop would wait for connections that clients keep open
        process.wait(30)


def shared_access() -> str:
    """A shared access signature of the account that permits reading and listing for an hour."""
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    signed = "\n".join([ACCOUNT, READ_AND_LIST, "b", "sco", "", until, "", "", API, "", ""])
    given = {"sv": API, "ss": "b", "srt": "sco", "sp": READ_AND_LIST, "se": until, "sig": _signature(signed)}
    return urlencode(given)


def bearer_token() -> str:
    """A token like those that Azure's directory issues, valid for an hour; the emulator checks its claims but not its
    signature.
    """
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com", "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 60, "nbf": now - 60, "exp": now + 3600, "ver": "1.0",
    }  # fmt: skip
    parts = ({"alg": "HS256", "typ": "JWT"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


def _signature(signed: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()


def _make_container(endpoint: str, port: int, name: str, trust: ssl.SSLContext | None) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.2)
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    headers = {
        "x-ms-date": date, "x-ms-version": API, "Content-Length": "0",
        "Authorization": f"SharedKey {ACCOUNT}:{_signature(signed)}",
    }  # fmt: skip
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
        assert answer.status == 201
