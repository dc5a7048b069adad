"""Repairs the commit log in place, so that a broker skips what is lost and finds every intact record.

Addresses of records never change: lost bytes become a record that no queue lists, or a blank record up to the end of
their file. Both versions accept that (rocketmq.md 2.6, 5.4, 5.6). Source: docs/recovery.md "Repair".
"""

from __future__ import annotations

import os

import numpy as np
from isal.isal_zlib import crc32

from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.open_files import OpenFiles
from storage_core.files.small_file import read_at
from storage_core.files.sparse_write import move_file
from storage_core.finding import Finding
from storage_core.formats.checksum import MASK
from storage_core.formats.compression import InflateError, inflate
from storage_core.formats.rocketmq.encode import blank_record
from storage_core.formats.rocketmq.filler import SMALLEST, fillers
from storage_core.formats.rocketmq.message import (
    BLANK,
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    HEADER,
    HEADER_V4,
    HOST_V4,
    HOST_V6,
    MIN_SIZE,
    PHYSICAL_OFFSET_AT,
    STORE_HOST_V6,
    decode,
)
from storage_core.job import JobFolder
from storage_core.repair.cut_bytes import CutBytes
from storage_core.rocketmq.disk.record_reader import head_at, record_at
from storage_core.rocketmq.verify.kinds import Kind

BODY_CRC_AT = HEADER_V4.field("body_crc").offset
STORE_MS_SIZE, PORT_SIZE = 8, 4
NEW = "repair-new"


class LogRepair:
    """Repairs findings about one commit log."""

    def __init__(self, log: FileChain, cut: CutBytes) -> None:
        self._log, self._cut = log, cut

    def mend(self, finding: Finding) -> str:
        """Repairs one finding. Returns what was done, or an empty text if nothing can or need be done."""
        kind, path = Kind(finding.kind), os.path.join(self._cut.root, finding.file)
        if kind is Kind.FILE_LOST:
            return self._make_blank(path, finding.length)
        file = next((file for file in self._log.files if file.path == path), None)
        if file is None:
            return ""
        match kind:
            case Kind.LENGTH:
                self._cut.resize(path, self._log.file_size)
                return f"has {self._log.file_size:,} bytes now"
            case Kind.BYTES:
                saved = self._readdress(file, finding.position, finding.length)
                return saved or self._fill(file, finding.position, finding.length)
            case Kind.DELAY:
                return self._fill(file, finding.position, finding.length)
            case Kind.PORT:
                return self._cut_ports(file, finding.position)
            case Kind.CHECKSUM:
                return self._accept_body(file, finding.position)
            case Kind.TORN:
                self._cut.zero(path, finding.position, finding.length)
                return "cut"
        return ""

    def _make_blank(self, path: str, size: int) -> str:
        """Adds a file that holds nothing but a blank record to the chain, in one step."""
        staged = os.path.join(JobFolder(self._cut.root).folder, NEW)
        descriptor = system.open_write(staged, create=True)
        try:
            system.truncate(descriptor, 0)
            system.truncate(descriptor, size)
            system.pwrite(descriptor, blank_record(size), 0)
            system.fsync(descriptor)
        finally:
            system.close(descriptor)
        move_file(staged, path)
        system.sync_folder(os.path.dirname(path))
        return "created blank"

    def _readdress(self, file: ChainFile, position: int, size: int) -> str:
        """Rewrites the address of a record that is otherwise right; brokers do not check it (rocketmq.md 5.4)."""
        data = np.frombuffer(read_at(file.path, size, position), np.uint8)
        total = int.from_bytes(data[:4].tobytes(), "big", signed=True)
        if not MIN_SIZE <= total <= len(data):
            return ""
        record = decode(data, np.zeros(1, np.int64), np.array([total]))
        if record.flaws[0] or not record.body_size[0] or record.wrong_bodies()[0]:
            return ""
        address = (file.base_offset + position).to_bytes(8, "big")
        self._cut.overwrite(file.path, position + PHYSICAL_OFFSET_AT, address)
        return "its address is corrected"

    def _fill(self, file: ChainFile, position: int, size: int) -> str:
        if position + size == file.size:
            if size < BLANK.size:
                return ""
            self._cut.overwrite(file.path, position, blank_record(size))
            return "a blank record leads to the next file"
        if size < SMALLEST:
            return ""
        with OpenFiles() as files:
            after = head_at(self._log, files, file.base_offset + position + size)
        store_ms = after.store_ms if after is not None else 0
        self._cut.overwrite(file.path, position, fillers(file.base_offset + position, size, store_ms))
        return "filled with a record that no queue lists"

    def _cut_ports(self, file: ChainFile, position: int) -> str:
        """Clears the upper 16 bits of both ports of a record, so that clients can decode it."""
        with OpenFiles() as files:
            record = record_at(self._log, files, file.base_offset + position, file.end)
        if record is None:
            return ""
        flags = int(record.column("sys_flag")[0])
        born = HEADER.size + (HOST_V6 if flags & BORN_HOST_V6 else HOST_V4)
        store = born + STORE_MS_SIZE + (HOST_V6 if flags & STORE_HOST_V6 else HOST_V4)
        for at in (position + born - PORT_SIZE, position + store - PORT_SIZE):
            if any(read_at(file.path, 2, at)):
                self._cut.overwrite(file.path, at, bytes(2))
        return "its ports have 16 bits now"

    def _accept_body(self, file: ChainFile, position: int) -> str:
        """Gives a record the checksum of its present body; a broker, too, serves that body unchanged.

        A compressed body that no longer inflates is of no use to anyone; its record is filled.
        """
        with OpenFiles() as files:
            record = record_at(self._log, files, file.base_offset + position, file.end)
            if record is None:
                return ""
            body, flags = record.bodies()[0].as_py(), int(record.column("sys_flag")[0])
            size = int(record.column("total_size")[0])
        if flags & COMPRESSED and not _inflates(body, flags >> COMPRESSION_SHIFT & COMPRESSION_MASK):
            return self._fill(file, position, size)
        checksum = (crc32(body) & MASK).to_bytes(4, "big")
        if read_at(file.path, 4, position + BODY_CRC_AT) != checksum:
            self._cut.overwrite(file.path, position + BODY_CRC_AT, checksum)
        return "kept as it is, with the checksum of its present body"


def _inflates(body: bytes, kind: int) -> bool:
    try:
        inflate(body, kind)
    except InflateError:
        return False
    return True
