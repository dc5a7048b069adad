"""A real S3 server that serves a folder as a bucket: S3Proxy, a single jar that Maven fetches."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cache import CACHE, maven_alone
from tests.support.certificates import PASSWORD
from tests.support.free_ports import free_ports

ARTIFACT = "org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
JAR = "s3proxy-4.1.0-jar-with-dependencies.jar"
KEY, SECRET = "openSesameKey", "openSesameSecret"
SETTINGS = """s3proxy.endpoint=http://127.0.0.1:{port}
{authorization}
jclouds.provider=filesystem-nio2
jclouds.identity=remote-identity
jclouds.credential=remote-credential
jclouds.filesystem.basedir={folder}
"""
KEYS = f"""s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={KEY}
s3proxy.credential={SECRET}"""
NO_KEYS = "s3proxy.authorization=none"
SECURE = """s3proxy.secure-endpoint={endpoint}
s3proxy.keystore-path={key_store}
s3proxy.keystore-password={password}
"""


@dataclass(frozen=True)
class S3Server:
    """A running server: its endpoint, the folder whose subfolders are its buckets, and its TLS endpoint if any."""

    endpoint: str
    folder: Path
    secure_endpoint: str = ""

    @property
    def options(self) -> dict[str, str]:
        """The options of a read."""
        return {
            "storage.endpoint": self.endpoint, "storage.accessKey": KEY, "storage.secretKey": SECRET,
            "storage.region": "us-east-1",
        }  # fmt: skip


def jar() -> Path:
    """The server's jar, which Maven fetches once per checkout."""
    folder = CACHE / "s3proxy"
    with maven_alone():
        if not (folder / JAR).exists():
            call = ["mvn", "-q", "-B", COPY, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]
            subprocess.run(call, check=True, timeout=300)
    return folder / JAR


@contextmanager
def s3_server(root: Path, key_store: Path | None = None, wants_keys: bool = True) -> Iterator[S3Server]:
    """Serves the folders in `root/buckets` as buckets while the block runs; with a key store, also over TLS on a second
    port. Its settings and its log are in `root`.
    """
    folder = root / "buckets"
    folder.mkdir(parents=True, exist_ok=True)
    port, secure_port = free_ports(2)
    settings, secure = root / f"s3proxy-{port}.conf", f"https://127.0.0.1:{secure_port}" if key_store else ""
    text = SETTINGS.format(port=port, authorization=KEYS if wants_keys else NO_KEYS, folder=folder)
    if key_store:
        text += SECURE.format(endpoint=secure, key_store=key_store, password=PASSWORD)
    settings.write_text(text)
    with (root / f"s3proxy-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-DLOG_LEVEL=error", "-jar", str(jar()), "--properties", str(settings)],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait(process, port)
            yield S3Server(f"http://127.0.0.1:{port}", folder, secure)
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError("the S3 server ended")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the S3 server does not answer")
