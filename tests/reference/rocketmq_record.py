"""The slow, obvious twin of the RocketMQ record decoder: one record at a time, directly after the format page.

It shares no code with `storage_core`; tests compare both the fast decoder and the truth files of real stores with it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
RECORD_MAGIC = rb"\xda\xa3\x20[\xa7\xab]"
LONGEST_RECORD = 64 << 20
"""In bytes; no record in the tests' stores is as long."""

TIMES = ("bornTimestamp", "storeTimestamp")
YEAR_1_MS, YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000
"""Times outside these years are null: neither Spark's nor Python's calendar can represent them."""

NATIVE_COLUMNS = (
    "topic", "queueId", "queueOffset", "key", "keys", "tags", "body", "properties", "bornTimestamp", "storeTimestamp",
    "msgId", "offsetMsgId", "bornHost", "storeHost", "sysFlag", "flag", "reconsumeTimes", "preparedTransactionOffset",
    "bodyCrc", "physicalOffset", "size", "rawProperties", "store",
)  # fmt: skip


class NotARecord(ValueError):  # noqa: N818 - a finding, not a failure
    """The bytes at a position are not a record."""


class Damaged(ValueError):  # noqa: N818
    """A record whose body is flagged as compressed and does not inflate."""


def split_record(data: bytes, at: int) -> dict[str, Any]:
    """The stored fields of the record at `at`, undecoded. Raises NotARecord if magic or lengths are wrong."""
    if at < 0 or at + 91 > len(data):
        raise NotARecord(at)
    size, magic, crc, queue_id, flag, queue_offset, phy, sys_flag, born = struct.unpack_from(">iIiiiqqiq", data, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < 91 or at + size > len(data):
        raise NotARecord(at)
    place, stop = at + 48, at + size
    born_address, place = data[place : place + (20 if sys_flag & 0x10 else 8)], place + (20 if sys_flag & 0x10 else 8)
    stored, place = struct.unpack_from(">q", data, place)[0], place + 8
    store_address, place = data[place : place + (20 if sys_flag & 0x20 else 8)], place + (20 if sys_flag & 0x20 else 8)
    if place + 16 > stop:
        raise NotARecord(at)
    reconsume, prepared, body_size = struct.unpack_from(">iqi", data, place)
    place += 16
    if body_size < 0 or place + body_size + 1 > stop:
        raise NotARecord(at)
    body_at, place = place, place + body_size
    width = 2 if magic == MAGIC_V2 else 1
    if place + width > stop:
        raise NotARecord(at)
    topic_size = struct.unpack_from(">h" if width == 2 else ">b", data, place)[0]
    place += width
    if topic_size < 0 or place + topic_size + 2 > stop:
        raise NotARecord(at)
    topic, place = data[place : place + topic_size], place + topic_size
    properties_size = struct.unpack_from(">h", data, place)[0]
    place += 2
    if properties_size < 0 or place + properties_size != stop:
        raise NotARecord(at)
    return {
        "magic": magic, "size": size, "bodyCrc": crc, "queueId": queue_id, "flag": flag, "queueOffset": queue_offset,
        "physicalOffset": phy, "sysFlag": sys_flag, "bornTimestamp": born, "born": born_address,
        "storeTimestamp": stored, "stored": store_address, "reconsumeTimes": reconsume,
        "preparedTransactionOffset": prepared, "topic": topic.decode("utf-8", "replace"),
        "storedBody": data[body_at : body_at + body_size], "rawProperties": data[place:stop],
    }  # fmt: skip


def parse_properties(raw: bytes) -> list[tuple[str, str]]:
    """Name and value pairs in stored order, as the broker's own parser reads them. A later duplicate replaces the value
    and keeps the place.
    """
    found: dict[str, str] = {}
    for piece in raw.decode("utf-8", "replace").split("\x02"):
        name, separator, value = piece.partition("\x01")
        if name and separator and value:
            found[name] = value
    return list(found.items())


def host_text(address: bytes) -> str:
    """`ip:port` of a stored host."""
    port = struct.unpack(">i", address[-4:])[0]
    ip = ipaddress.ip_address(address[:-4])
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The body as a client gets it. Raises Damaged if it is flagged as compressed and does not inflate."""
    if not sys_flag & 1 or not body:
        return body
    kind = sys_flag >> 8 & 7
    try:
        if kind in (0, 3):
            return zlib.decompress(body)
        if kind in (1, 2):
            return pa.input_stream(pa.BufferReader(body), compression="lz4" if kind == 1 else "zstd").read()
    except (zlib.error, OSError, pa.ArrowInvalid) as error:
        raise Damaged(str(error)) from error
    raise Damaged(f"compression type {kind}")


def native_row(fields: dict[str, Any], store: str) -> dict[str, Any]:
    """A row with the native columns from the fields of `split_record`, as `scan=log` shows it. Times are epoch ms."""
    pairs = parse_properties(fields["rawProperties"])
    named = dict(pairs)
    key = named.get("KEYS")
    offset_id = (fields["stored"] + struct.pack(">q", fields["physicalOffset"])).hex().upper()
    return {
        **{name: fields[name] for name in NATIVE_COLUMNS if name in fields},
        "key": key,
        "keys": None if key is None else [word for word in key.split(" ") if word],
        "tags": named.get("TAGS"),
        "body": inflate(fields["storedBody"], fields["sysFlag"]),
        "properties": pairs,
        "msgId": named.get("UNIQ_KEY", offset_id),
        "offsetMsgId": offset_id,
        "bornHost": host_text(fields["born"]),
        "storeHost": host_text(fields["stored"]),
        **{name: fields[name] if YEAR_1_MS <= fields[name] < YEAR_10000_MS else None for name in TIMES},
        "store": store,
    }


class Log:
    """The commit log of a small store, held entirely in memory."""

    def __init__(self, directory: Path) -> None:
        self.store = directory.parent.name
        self.files = {
            int(path.name): _read_to_last_record(path)
            for path in sorted(directory.glob("*"))
            if path.is_file() and len(path.name) == 20 and path.name.isdigit()
        }

    def fields(self, physical_offset: int) -> dict[str, Any]:
        """The record that starts at a physical offset. Raises NotARecord if there is none."""
        # A file that is longer than the others does not hide the next one.
        for base, data in reversed(self.files.items()):
            if base <= physical_offset < base + len(data):
                return split_record(data, physical_offset - base)
        raise NotARecord(physical_offset)

    def row(self, physical_offset: int) -> dict[str, Any]:
        """The record at a physical offset as a native row with the record's own topic, queue and ordinal."""
        return native_row(self.fields(physical_offset), self.store)

    def right_records(self) -> Iterator[dict[str, Any]]:
        """Every record in the log whose magic, lengths and PHYSICALOFFSET are right, in physical order."""
        for base, data in self.files.items():
            free = 0
            for found in re.finditer(RECORD_MAGIC, data):
                at = found.start() - 4
                if at < free:
                    continue
                try:
                    fields = split_record(data, at)
                except NotARecord:
                    continue
                if fields["physicalOffset"] == base + at:
                    yield fields
                    free = at + fields["size"]


def _read_without_tail_hole(path: Path) -> bytes:
    """The bytes of a file up to its trailing hole, so that a preallocated 1 GiB file is not read."""
    with path.open("rb") as file:
        pieces = _pieces(file)
        file.seek(0)
        return file.read(pieces[-1][1] if pieces else 0)


def _read_to_last_record(path: Path) -> bytes:
    """The bytes of a file up to the last piece that can be part of a record: a byte after 1 GiB of nothing cannot."""
    with path.open("rb") as file:
        pieces = _pieces(file)
        while len(pieces) > 1:
            start, stop = pieces[-1]
            file.seek(start)
            if start - pieces[-2][1] < LONGEST_RECORD or re.search(RECORD_MAGIC, file.read(stop - start)):
                break
            pieces.pop()
        file.seek(0)
        return file.read(pieces[-1][1] if pieces else 0)


def _pieces(file: BinaryIO) -> list[tuple[int, int]]:
    """The start and stop of each piece between holes."""
    pieces, stop, size = list[tuple[int, int]](), 0, os.fstat(file.fileno()).st_size
    while stop < size:
        try:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
        except OSError:
            break
        stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        pieces.append((start, stop))
    return pieces
