"""Slow, obvious readers and writers of RabbitMQ's index and message files, one record at a time.

Source: rabbitmq.md 2, 3, 6.1, 8.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

from storage_core.formats.rabbitmq.amqp.field_table import json_text


def journal(data: bytes) -> tuple[list[tuple[int, int, int, int]], int]:
    """(kind, sequence id, position, embedded size) of each record, and the position where the reader stopped."""
    found = []
    position = 0
    while position + 8 <= len(data):
        (head,) = struct.unpack_from(">Q", data, position)
        kind, sequence_id = head >> 62, head & (1 << 62) - 1
        if kind >= 2:
            found.append((kind, sequence_id, position, 0))
            position += 8
            continue
        if position + 40 > len(data) or data[position : position + 40] == bytes(40):
            break
        (embedded,) = struct.unpack_from(">I", data, position + 36)
        if position + 40 + embedded > len(data):
            break
        found.append((kind, sequence_id, position, embedded))
        position += 40 + embedded
    return found, position


def segment(data: bytes) -> tuple[list[int], list[int], int]:
    """Positions of publishes and of marks, and the position where the reader stopped."""
    publishes, marks = [], []
    position = 0
    while position < len(data):
        top = data[position] >> 6
        if top >= 2:
            if position + 34 > len(data):
                break
            (embedded,) = struct.unpack_from(">I", data, position + 30)
            if position + 34 + embedded > len(data):
                break
            publishes.append(position)
            position += 34 + embedded
        elif top == 1 and position + 2 <= len(data):
            marks.append(position)
            position += 2
        else:
            break
    return publishes, marks, position


def message_file(data: bytes) -> tuple[list[tuple[int, int]], list[int], int]:
    """(position, size) of each complete record, positions of those without a marker, and where the reader stopped."""
    found, unmarked = [], []
    position = 0
    while position + 8 <= len(data):
        (length,) = struct.unpack_from(">Q", data, position)
        if length == 0 or position + length + 9 > len(data):
            break
        if length >= 16 and data[position + length + 8] == 255:
            found.append((position, length + 9))
        else:
            unmarked.append(position)
        position += length + 9
    return found, unmarked, position


def journal_publish(
    sequence_id: int, persistent: bool, message_id: bytes, expiry_us: int, body_size: int, embedded: bytes = b""
) -> bytes:
    """A publish record of a journal."""
    head = sequence_id | (0 if persistent else 1 << 62)
    return struct.pack(">Q16sQII", head, message_id, expiry_us, body_size, len(embedded)) + embedded


def segment_publish(
    relative: int, persistent: bool, message_id: bytes, expiry_us: int, body_size: int, embedded: bytes = b""
) -> bytes:
    """A publish record of a segment."""
    head = 0x8000 | (0x4000 if persistent else 0) | relative
    return struct.pack(">H16sQII", head, message_id, expiry_us, body_size, len(embedded)) + embedded


def segment_mark(relative: int) -> bytes:
    """A deliver record, or, if it is the second mark of an entry, its ack."""
    return struct.pack(">H", 0x4000 | relative)


def stored_v2(term: bytes) -> bytes:
    """A stored message of a version-2 queue with its header."""
    return struct.pack(">IBHB", len(term), 1, crc32(term) & 0xFFFF, 0) + term


def header_text(letter: str, value: Any) -> str:
    """A header's value as a row shows it: a long string as its text, any other type as JSON text."""
    return value.decode("utf-8", "replace") if letter == "S" else json_text(letter, value)
