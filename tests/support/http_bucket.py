"""An in-process server that implements as much of S3 as a reader of stores needs, and fails on request.

Its errors are as verbose as those of AWS: they quote the key, the token and the string that was signed.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "backups"
KEY, SECRET, TOKEN = "AKIAOPENSESAME", "xyzzy+secret/sesame", "openSesameSessionToken=="
NAMES_AN_ANSWER = 1000
STATUS = {
    "SlowDown": 503, "InternalError": 500, "InvalidAccessKeyId": 403, "SignatureDoesNotMatch": 403, "AccessDenied": 403,
    "NoSuchBucket": 404, "NoSuchKey": 404, "PermanentRedirect": 301, "AuthorizationHeaderMalformed": 400,
    "ExpiredToken": 400, "PreconditionFailed": 412,
}  # fmt: skip
ERROR = (
    "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message><AWSAccessKeyId>{key}</AWSAccessKeyId>"
    "<Token-0>{token}</Token-0><StringToSign>AWS4-HMAC-SHA256 {key}</StringToSign></Error>"
)
ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag>"
    "<Size>{size}</Size></Contents>"
)


class HttpBucket(ThreadingHTTPServer):
    """Objects by path. `fault(kind, path)`, where kind is list or get, is called before each answer and returns an
    error code, reset, short, stall, or nothing. If `knows_if_match` is false, the conditions of a read are ignored.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.fault: Callable[[str, str], str] = lambda kind, path: ""
        self.asked: list[tuple[str, str]] = []
        self.knows_if_match = True
        self.ended = threading.Event()

    @property
    def options(self) -> dict[str, str]:
        """The options of a read."""
        return {
            "storage.endpoint": f"http://127.0.0.1:{self.server_address[1]}", "storage.accessKey": KEY,
            "storage.secretKey": SECRET, "storage.sessionToken": TOKEN, "storage.region": "us-east-1",
        }  # fmt: skip

    def add_folder(self, folder: Path, prefix: str) -> None:
        """Puts every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()

    def listed(self, query: dict[str, list[str]]) -> str:
        """The answer to one list request."""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        names = sorted(path for path in self.objects if path.startswith(prefix))
        folders: list[str] = []
        if delimiter:
            cut = {name: name[len(prefix) :].partition(delimiter) for name in names}
            folders = sorted({prefix + head + delimiter for head, found, _ in cut.values() if found})
            names = [name for name in names if not cut[name][1]]
        first = int(query.get("continuation-token", ["0"])[0])
        after = first + NAMES_AN_ANSWER
        parts = [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        for name in names[first:after]:
            data = self.objects[name]
            parts.append(ENTRY.format(key=escape(name), etag=md5(data).hexdigest(), size=len(data)))
        more = f"<NextContinuationToken>{after}</NextContinuationToken>" if after < len(names) else ""
        cut_off = "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{cut_off}</IsTruncated>{more}{''.join(parts)}</ListBucketResult>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpBucket

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, path = unquote(parts.path).lstrip("/").partition("/")
        kind = "get" if path else "list"
        self.server.asked.append((kind, path))
        fault = self.server.fault(kind, path)
        if fault == "stall":
            self.server.ended.wait(60)
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        elif fault and fault != "short":
            self._refuse(fault)
        elif bucket != BUCKET:
            self._refuse("NoSuchBucket")
        elif kind == "list":
            self._answer(200, self.server.listed(parse_qs(parts.query)).encode())
        else:
            self._object(path, fault == "short")

    def _refuse(self, code: str) -> None:
        self._answer(STATUS[code], ERROR.format(code=code, key=KEY, token=TOKEN).encode())

    def _object(self, path: str, is_cut: bool) -> None:
        data = self.server.objects.get(path)
        if data is None:
            return self._refuse("NoSuchKey")
        etag = f'"{md5(data).hexdigest()}"'
        if self.server.knows_if_match and self.headers.get("If-Match", etag) != etag:
            return self._refuse("PreconditionFailed")
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(span[1]), int(span[2]) + 1) if span else (0, len(data))
        headers = {
            "ETag": etag, "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
            "Content-Range": f"bytes {begin}-{min(end, len(data)) - 1}/{len(data)}",
        }  # fmt: skip
        return self._answer(206 if span else 200, data[begin:end], headers, is_cut)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        with suppress(OSError):  # the client may have given up
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection = is_cut


@contextmanager
def http_bucket() -> Iterator[HttpBucket]:
    """Serves an empty bucket while the block runs."""
    server = HttpBucket()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


@contextmanager
def talker(answer: bytes) -> Iterator[str]:
    """The address of a server that sends the same answer to every client that sends something, then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
