"""A faulty proxy in front of an S3 server: every n-th new request for bytes fails once, or all later ones too."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

XML = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
ANSWERS = {"503": (503, "SlowDown"), "500": (500, "InternalError"), "expired": (400, "ExpiredToken")}
STALL_S = 3.0


class FaultyProxy(ThreadingHTTPServer):
    """`fault` is one of 503, 500, reset, stall, short, expired, or none. It hits every `every`-th new request for the
    bytes of an object once; `expired` also hits every later request. `struck` counts the hits.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.server = urlsplit(endpoint).netloc
        self.fault, self.every, self.struck = "", 3, 0
        self._seen: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def begin(self, fault: str, every: int = 3) -> None:
        """Applies this fault from now on."""
        with self._lock:
            self.fault, self.every, self.struck = fault, every, 0
            self._seen.clear()

    def strikes(self, path: str, span: str | None) -> str:
        """The fault of this request, or none."""
        with self._lock:
            if not self.fault or span is None or (path, span) in self._seen:
                return "expired" if self.fault == "expired" and self.struck else ""
            self._seen.add((path, span))
            if len(self._seen) % self.every and not (self.fault == "expired" and self.struck):
                return ""
            self.struck += 1
            return self.fault


class Handler(BaseHTTPRequestHandler):
    """Forwards requests unchanged."""

    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _pass_on(self) -> None:
        fault = self.server.strikes(self.path, self.headers.get("Range"))
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        if fault == "stall":
            time.sleep(STALL_S)
        if fault in ANSWERS:
            status, code = ANSWERS[fault]
            self._answer(status, [], XML.format(code=code, message=self.path).encode(), False)
            return
        connection = http.client.HTTPConnection(self.server.server, timeout=30)
        try:
            data, status, headers = self._forwarded(connection)
        finally:
            connection.close()
        self._answer(status, headers, data, fault == "short")

    def _forwarded(self, connection: http.client.HTTPConnection) -> tuple[bytes, int, list[tuple[str, str]]]:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.read(), answer.status, answer.getheaders()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, is_cut: bool) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        with suppress(OSError):
            self.end_headers()
        with suppress(OSError):  # the client may have given up
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection = is_cut


@contextmanager
def faulty_proxy(endpoint: str) -> Iterator[FaultyProxy]:
    """Runs the proxy while the block runs."""
    proxy = FaultyProxy(endpoint)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
