"""A minimal client of RabbitMQ's stream protocol: publishes messages and sub-batches, and stores consumers' offsets."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Sequence
from struct import pack, unpack_from

CREATED, CONFIRMED, TUNED = 1, 3, 0x14
SubBatch = tuple[int, list[bytes]]
"""Compression (0 none, 1 gzip) and messages."""


def text(value: str) -> bytes:
    """A string of the protocol."""
    raw = value.encode()
    return pack(">H", len(raw)) + raw


class StreamClient:
    """A connection. `publish` numbers what it sends; `confirmed` waits until the node has all of it."""

    def __init__(self, port: int, timeout_s: float = 30) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._buffer, self._calls, self._sent, self._confirms = b"", 0, 0, 0
        self._call(0x11, pack(">I", 1) + text("product") + text("test"))
        self._call(0x12, b"")
        response = b"\0guest\0guest"
        self._call(0x13, text("PLAIN") + pack(">I", len(response)) + response)
        self._send(TUNED, self._next(TUNED)[4:12])
        self._call(0x15, text("/"))

    def _send(self, key: int, body: bytes) -> None:
        frame = pack(">HH", key, 1) + body
        self._socket.sendall(pack(">I", len(frame)) + frame)

    def _frame(self) -> tuple[int, bytes]:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + unpack_from(">I", self._buffer)[0]:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the node closed the connection")
            self._buffer += data
        stop = 4 + unpack_from(">I", self._buffer)[0]
        frame, self._buffer = self._buffer[4:stop], self._buffer[stop:]
        key = unpack_from(">H", frame)[0] & 0x7FFF
        if key == CONFIRMED:
            self._confirms += unpack_from(">I", frame, 5)[0]
        return key, frame

    def _next(self, key: int) -> bytes:
        while True:
            found, frame = self._frame()
            if found == key:
                return frame

    def _call(self, key: int, body: bytes) -> None:
        self._calls += 1
        self._send(key, pack(">I", self._calls) + body)
        code = unpack_from(">H", self._next(key), 8)[0]
        if code != CREATED:
            raise ConnectionError(f"call {key:#x} ended with {code}")

    def publisher(self, number: int, reference: str, stream: str) -> None:
        """Declares a publisher; one without a reference is anonymous."""
        self._call(0x01, bytes([number]) + text(reference) + text(stream))

    def publish(self, publisher: int, first: int, entries: Sequence[bytes | SubBatch]) -> None:
        """Publishes messages and sub-batches with publishing ids from `first` on."""
        body = bytes([publisher]) + pack(">I", len(entries))
        for number, entry in enumerate(entries, first):
            if isinstance(entry, bytes):
                body += pack(">QI", number, len(entry)) + entry
                continue
            kind, messages = entry
            plain = b"".join(pack(">I", len(each)) + each for each in messages)
            packed = gzip.compress(plain, mtime=0) if kind == 1 else plain
            head = pack(">QBHII", number, 0x80 | kind << 4, len(messages), len(plain), len(packed))
            body += head + packed
        self._sent += len(entries)
        self._send(0x02, body)

    def confirmed(self) -> None:
        """Waits until the node has confirmed all that was sent."""
        while self._confirms < self._sent:
            self._frame()

    def store_offset(self, reference: str, stream: str, offset: int) -> None:
        """Stores a consumer's offset in the stream."""
        self._send(0x0A, text(reference) + text(stream) + pack(">Q", offset))

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
