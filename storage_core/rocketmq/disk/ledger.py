"""A DLedger log on disk: the folder in which a broker with enableDLegerCommitLog keeps it, and its chain of files.

Where its records end is decided by `recovery`. Source of the rules: rocketmq.md 2.11.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_core.errors import UnsupportedFormatError
from storage_core.files import system
from storage_core.files.file_chain import ChainFile, FileChain
from storage_core.files.lock import is_locked
from storage_core.files.small_file import names_in, read_start
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.ledger import LEDGER_HEADER, committed_number, right_headers
from storage_core.formats.rocketmq.message import BLANK, MAGIC_V1, MAGIC_V2

CHECKPOINT_SIZE = 4096


@dataclass(frozen=True)
class LedgerChain(FileChain):
    """A log whose records have headers from the address `divided_offset` on; before that address is the log that the
    broker had before DLedger.
    """

    divided_offset: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the files as FileChain does."""
        return as_ledger, (FileChain(self.files, self.file_size), self.divided_offset)

    def name_of(self, offset: int) -> str:
        """`FileChain.name_of`, in the folder of the ledger or of the log before it."""
        in_ledger = offset >= self.divided_offset
        return FileChain(tuple(f for f in self.files if self.is_ledger(f) == in_ledger), self.file_size).name_of(offset)

    def is_ledger(self, file: ChainFile) -> bool:
        """Whether the records of a file have headers."""
        return file.base_offset >= self.divided_offset


@dataclass(frozen=True)
class LedgerState:
    """The state of a ledger besides its log: the number of the last record that the node knows to be committed, -1 if
    it knows of none, and whether a broker has it open.
    """

    committed: int
    is_open: bool


def as_ledger(chain: FileChain, divided_offset: int) -> LedgerChain:
    """The chain as a log whose records have headers from an address on."""
    return LedgerChain(chain.files, chain.file_size, divided_offset)


def refuse_ledger(root: str, log: FileChain) -> None:
    """Raises UnsupportedFormatError for a DLedger log, which only its group may change."""
    if isinstance(log, LedgerChain):
        raise UnsupportedFormatError(
            f"{root}: a DLedger log, which mqstore reads and does not change, as its records must be the same on every "
            "node of their group; write into a new directory, or send messages to the broker"
        )


def has_headers(file: ChainFile) -> bool:
    """Whether the records of a file have headers: true unless it begins with a record that has none."""
    magic = read_start(file.path, BLANK.size)[BLANK.field("magic").offset :]
    return int.from_bytes(magic, "big") not in (MAGIC_V1, MAGIC_V2)


def begins_with_header(chain: FileChain) -> bool:
    """Whether a chain begins with the header of a record at its own address."""
    if not chain.files:
        return False
    data = read_start(chain.files[0].path, LEDGER_HEADER.size).ljust(LEDGER_HEADER.size, b"\0")
    return bool(right_headers(np.frombuffer(data, LEDGER_HEADER.dtype), np.array([chain.start]))[0])


def first_record_offset(log: FileChain, file: ChainFile) -> int:
    """Address of the first record in a file of a log."""
    return file.base_offset + header_size(log, file)


def header_size(log: FileChain, file: ChainFile) -> int:
    """Bytes of the header before each record of a file, which is not part of the record."""
    return LEDGER_HEADER.size if isinstance(log, LedgerChain) and log.is_ledger(file) else 0


def ledger_state(root: str) -> LedgerState | None:
    """The state of the ledger in a store directory; None if there is none."""
    ledger = ledger_of(root)
    if ledger is None:
        return None
    text = read_start(os.path.join(ledger, paths.DLEDGER_CHECKPOINT), CHECKPOINT_SIZE).decode("utf-8", "replace")
    lock = os.path.join(root, paths.LOCK)
    return LedgerState(committed_number(text), system.is_local(lock) and is_locked(lock))


def ledger_of(root: str) -> str | None:
    """The folder of the ledger in a store directory; None if there is none.

    Raises UnsupportedFormatError for several.
    """
    found = [name for name in names_in(root) if name.startswith(paths.DLEDGER_PREFIX)]
    if len(found) > 1:
        found = [name for name in found if system.is_folder(os.path.join(root, name))]
    if len(found) > 1:
        raise UnsupportedFormatError(
            f"{root}: {' and '.join(sorted(found))} are DLedger logs of different nodes; leave the one that is this "
            "broker's (its dLegerSelfId)"
        )
    return os.path.join(root, found[0]) if found else None
