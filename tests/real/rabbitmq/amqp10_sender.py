"""A minimal AMQP 1.0 client that sends the exact bytes of a message to a real node of RabbitMQ 4."""

from __future__ import annotations

import socket
from struct import pack, unpack_from
from typing import Self
from urllib.parse import quote

from tests.rabbitmq.amqp10 import counted, listed

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, CLOSE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x18
DETACH, END = 0x16, 0x17
MECHANISMS, INIT, OUTCOME, SOURCE, TARGET = 0x40, 0x41, 0x44, 0x28, 0x29
ACCEPTED = bytes((0, 0x53, 0x24))
SASL, PLAIN = b"AMQP\3\1\0\0", b"AMQP\0\1\0\0"
NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"


def uint(number: int) -> bytes:
    return b"\x70" + number.to_bytes(4, "big")


def performative(code: int, *fields: bytes) -> bytes:
    return bytes((0, 0x53, code)) + listed(0xC0, list(fields))


def to_queue(name: str) -> str:
    """The address of a queue."""
    return f"/queues/{quote(name, safe='')}"


def to_exchange(name: str, key: str) -> str:
    """The address of an exchange, with a routing key."""
    return f"/exchanges/{quote(name, safe='')}/{quote(key, safe='')}"


class Sender:
    """One connection with a link for each address. A context manager."""

    def __init__(self, port: int, timeout_s: float = 60) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._links: dict[str, int] = {}
        self._sent = 0
        try:
            self._begin()
        except BaseException:
            self._socket.close()
            raise

    def _begin(self) -> None:
        self._greet(SASL)
        self._until(MECHANISMS)
        self._frame(performative(INIT, counted(0xA3, b"PLAIN"), counted(0xA0, b"\0guest\0guest")), kind=1)
        self._until(OUTCOME)
        self._greet(PLAIN)
        self._frame(performative(OPEN, counted(0xA1, b"tests"), NULL, uint(1 << 20)))
        self._until(OPEN)
        self._frame(performative(BEGIN, NULL, uint(0), uint(1 << 20), uint(1 << 20)))
        self._until(BEGIN)

    def _greet(self, words: bytes) -> None:
        self._socket.sendall(words)
        if (answer := self._take(len(words))) != words:
            raise ConnectionError(f"the node answers {answer!r}")

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the node closed the connection")
            data += piece
        return data

    def _frame(self, body: bytes, kind: int = 0) -> None:
        self._socket.sendall(pack(">IBBH", 8 + len(body), 2, kind, 0) + body)

    def _until(self, code: int) -> bytes:
        """The next frame of a kind. Raises ConnectionError for one that ends a session, link or connection."""
        while True:
            (size,) = unpack_from(">I", self._take(4))
            body = self._take(size - 4)[4:]
            if len(body) > 2 and body[2] == code:
                return body
            if len(body) > 2 and body[2] in {DETACH, END, CLOSE}:
                raise ConnectionError(repr(body))

    def _link(self, address: str) -> int:
        if address not in self._links:
            handle = self._links[address] = len(self._links)
            source = performative(SOURCE, counted(0xA1, b"tests"))
            target = performative(TARGET, counted(0xA1, address.encode()))
            fields = counted(0xA1, address.encode()), uint(handle), FALSE, NULL, NULL, source, target, NULL, NULL
            self._frame(performative(ATTACH, *fields, uint(0)))
            self._until(ATTACH)
            self._until(FLOW)
        return self._links[address]

    def send(self, address: str, message: bytes) -> None:
        """Sends a message and waits until the node has it. Raises ConnectionError if the node does not accept it."""
        handle, number = self._link(address), self._sent
        self._sent += 1
        fields = uint(handle), uint(number), counted(0xA0, b"%d" % number), uint(0), FALSE, FALSE
        self._frame(performative(TRANSFER, *fields) + message)
        if ACCEPTED not in (answer := self._until(DISPOSITION)):
            raise ConnectionError(repr(answer))

    def close(self) -> None:
        """Closes the connection properly."""
        try:
            self._frame(performative(CLOSE))
            self._until(CLOSE)
        except ConnectionError:
            pass
        finally:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
