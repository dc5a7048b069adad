"""A minimal AMQP 0-9-1 client that fetches what a real node delivers, with the property bytes as received."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from struct import pack, unpack_from
from typing import Self


@dataclass(frozen=True)
class Delivery:
    """One delivered message."""

    exchange: str
    routing_key: str
    redelivered: bool
    properties: bytes
    body: bytes
    tag: int


def short(text: str) -> bytes:
    """A short string."""
    raw = text.encode()
    return bytes((len(raw),)) + raw


class Client:
    """One connection with one channel. A context manager."""

    def __init__(self, port: int, vhost: str = "/", timeout_s: float = 60) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._buffer = b""
        try:
            self._open(vhost)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, vhost: str) -> None:
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._method(10, 10)
        response = b"\0guest\0guest"
        self._send(0, 10, 11, pack(">I", 0) + short("PLAIN") + pack(">I", len(response)) + response + short("en_US"))
        channels, self._frame_size = unpack_from(">HI", self._method(10, 30))
        self._send(0, 10, 31, pack(">HIH", channels, self._frame_size, 0))
        self._send(0, 10, 40, short(vhost) + short("") + b"\0")
        self._method(10, 41)
        self._send(1, 20, 10, short(""))
        self._method(20, 11)

    def _send(self, channel: int, kind: int, method: int, arguments: bytes) -> None:
        self._frame(1, channel, pack(">HH", kind, method) + arguments)

    def _frame(self, frame: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(pack(">BHI", frame, channel, len(payload)) + payload + b"\xce")

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the node closed the connection")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _next(self) -> tuple[int, bytes]:
        while True:
            frame, _, size = unpack_from(">BHI", self._take(7))
            payload = self._take(size + 1)[:-1]
            if frame != 8:
                return frame, payload

    def _method(self, kind: int, *methods: int) -> bytes:
        frame, payload = self._next()
        found = unpack_from(">HH", payload)
        if frame != 1 or found[0] != kind or found[1] not in methods:
            raise ConnectionError(f"frame {frame} {found} {payload[4:]!r}, not {kind} {methods}")
        return payload[4:]

    def get(self, queue: str) -> Delivery | None:
        """The next message, not acknowledged; None if the queue is empty."""
        self._send(1, 60, 70, pack(">H", 0) + short(queue) + b"\0")
        frame, payload = self._next()
        kind, method = unpack_from(">HH", payload)
        if (frame, kind, method) == (1, 60, 72):
            return None
        if (frame, kind, method) != (1, 60, 71):
            raise ConnectionError(f"{payload!r}")
        return self._delivered(payload, 4)

    def _delivered(self, payload: bytes, place: int) -> Delivery:
        """The message whose delivery tag is at `place`; its body follows in further frames."""
        tag, redelivered = unpack_from(">QB", payload, place)
        place += 9
        exchange = payload[place + 1 : place + 1 + payload[place]].decode()
        place += 1 + payload[place]
        key = payload[place + 1 : place + 1 + payload[place]].decode()
        _, header = self._next()
        size = unpack_from(">Q", header, 4)[0]
        body = b""
        while len(body) < size:
            body += self._next()[1]
        return Delivery(exchange, key, bool(redelivered), header[12:], body, tag)

    def consume(self, queue: str) -> list[Delivery]:
        """All ready messages, received by a consumer, not acknowledged."""
        self._send(1, 50, 10, pack(">H", 0) + short(queue) + b"\1" + pack(">I", 0))
        declared = self._method(50, 11)
        ready = unpack_from(">I", declared, 1 + declared[0])[0]
        self._send(1, 60, 20, pack(">H", 0) + short(queue) + short("") + b"\0" + pack(">I", 0))
        self._method(60, 21)
        found = []
        while len(found) < ready:
            payload = self._method(60, 60)
            found.append(self._delivered(payload, 1 + payload[0]))
        return found

    def stream(self, queue: str, expected: int, idle_s: float = 2.0) -> list[Delivery]:
        """All messages of a stream from its first on: the expected ones, and more until none arrives for `idle_s`."""
        found: list[Delivery] = []
        try:
            for delivery in self.streamed(queue):
                found.append(delivery)
                if len(found) >= expected:
                    self._socket.settimeout(idle_s)
        except TimeoutError:
            pass
        return found

    def streamed(self, queue: str, prefetch: int = 1000) -> Iterator[Delivery]:
        """The messages of a stream from its first on, acknowledged. Raises TimeoutError when no more arrive."""
        self._send(1, 60, 10, pack(">IHB", 0, prefetch, 0))
        self._method(60, 11)
        value = short("x-stream-offset") + b"S" + pack(">I", 5) + b"first"
        self._send(1, 60, 20, pack(">H", 0) + short(queue) + short("") + b"\0" + pack(">I", len(value)) + value)
        self._method(60, 21)
        for number in count(1):
            payload = self._method(60, 60)
            delivery = self._delivered(payload, 1 + payload[0])
            yield delivery
            if not number % -(-prefetch // 5):
                self._send(1, 60, 80, pack(">QB", delivery.tag, 1))

    def drain(self, queue: str) -> list[Delivery]:
        """All messages, not acknowledged."""
        found = []
        while (delivery := self.get(queue)) is not None:
            found.append(delivery)
        return found

    def ack(self, tag: int) -> None:
        """Acknowledges one message."""
        self._send(1, 60, 80, pack(">QB", tag, 0))

    def ack_all(self, tag: int) -> None:
        """Acknowledges everything up to `tag`, and waits until the node has processed it."""
        self._send(1, 60, 80, pack(">QB", tag, 1))
        self._send(1, 60, 10, pack(">IHB", 0, 0, 0))
        self._method(60, 11)

    def close(self) -> None:
        """Closes the connection properly."""
        try:
            self._send(0, 10, 50, pack(">H", 200) + short("") + pack(">HH", 0, 0))
            self._method(10, 51)
        finally:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self._socket.close()
