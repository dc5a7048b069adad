"""A test's own certificate authority and a server key signed by it, made with the JDK's keytool."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "changeit"
HOST = "127.0.0.1"
QUICK_JAVA = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
KEY = ("-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2")


@dataclass(frozen=True)
class Certificates:
    """`authority`: the certificate to trust, as PEM; `key_store`: the server's key and its chain (PKCS12)."""

    authority: Path
    key_store: Path


def made_authority(folder: Path) -> Path:
    """Makes a new authority; returns its certificate, as PEM."""
    _keytool("-genkeypair", *_store(folder, "authority"), *KEY, "-dname", "CN=mqstore test authority", "-ext", "bc:c")
    _keytool("-exportcert", *_store(folder, "authority"), "-rfc", "-file", str(folder / "authority.pem"))
    return folder / "authority.pem"


def made_certificates(folder: Path, host: str = HOST) -> Certificates:
    """Makes a new authority and the key of the server at an IP address."""
    authority, server = made_authority(folder), _store(folder, "server")
    request, chain = str(folder / "server.csr"), folder / "chain.pem"
    _keytool("-genkeypair", *server, *KEY, "-dname", f"CN={host}")
    _keytool("-certreq", *server, "-file", request)
    names = ("-ext", f"san=ip:{host}", "-validity", "2")
    _keytool("-gencert", *_store(folder, "authority"), *names, "-rfc", "-infile", request, "-outfile", str(chain))
    chain.write_text(chain.read_text() + authority.read_text())
    _keytool("-importcert", *server, "-noprompt", "-file", str(chain))
    return Certificates(authority, folder / "server.p12")


def _store(folder: Path, name: str) -> tuple[str, ...]:
    return "-keystore", str(folder / f"{name}.p12"), "-storepass", PASSWORD, "-alias", name


def _keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *QUICK_JAVA, *arguments], check=True, capture_output=True, timeout=60)
