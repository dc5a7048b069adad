"""Ways to damage a store with a DLedger log: a power failure, a flipped bit, lost files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from storage_core.formats.rocketmq.consumequeue import QUEUE_ENTRY
from storage_core.formats.rocketmq.ledger import LEDGER_HEADER

BODY_AT = 88
"""The position of the body in a record with IPv4 hosts."""


def log_files(directory: Path) -> list[Path]:
    """The files of the ledger, by address."""
    return sorted(next(directory.glob("dledger-*/data")).iterdir())


def headers(file: Path) -> list[int]:
    """Positions of the headers in a file of a ledger, and that of the first byte after the last record."""
    data, at, found = file.read_bytes(), 0, [0]
    while int.from_bytes(data[at : at + 4], "big") == 1:
        at += int.from_bytes(data[at + 4 : at + 8], "big")
        found.append(at)
    return found


def lose_log_tail(directory: Path, r: random.Random) -> None:
    """Zeroes the last file from within the header of one of the last records."""
    file = log_files(directory)[-1]
    starts = headers(file)
    at = starts[max(0, len(starts) - 1 - r.randrange(1, 6))]
    _zero(file, at + r.randrange(LEDGER_HEADER.size), file.stat().st_size)


def lose_queue_tails(directory: Path, r: random.Random) -> None:
    """Zeroes the last entries of each queue."""
    for folder in sorted(directory.glob("consumequeue/*/*")):
        file = sorted(folder.iterdir())[-1]
        entries = file.read_bytes().rstrip(b"\0")
        used = -(-len(entries) // QUEUE_ENTRY.size)
        _zero(file, max(0, used - r.randrange(8)) * QUEUE_ENTRY.size, file.stat().st_size)


def lose_queues(directory: Path, r: random.Random) -> None:
    """Removes all consume queues, or one of them."""
    folders = sorted(directory.glob("consumequeue/*/*"))
    for folder in folders if r.random() < 0.5 else [r.choice(folders)]:
        shutil.rmtree(folder)


def lose_ledger_index(directory: Path, r: random.Random) -> None:
    """Zeroes the ledger's own index from a random entry on: DLedger rebuilds it."""
    file = sorted(next(directory.glob("dledger-*/index")).iterdir())[-1]
    _zero(file, 32 * r.randrange(300), 32 * 20_000)


def lose_committed(directory: Path, r: random.Random) -> None:
    """Removes the node's record of what is committed, or sets it back to an earlier state."""
    for file in directory.glob("dledger-*/checkpoint*"):
        if r.random() < 0.5:
            file.unlink()
        else:
            file.write_text(f"committedIndex={r.randrange(200)}\nendIndex=300\n")


def flip_in_record(directory: Path, r: random.Random) -> None:
    """Flips one bit in the body of a record in one of the last files."""
    file = r.choice(log_files(directory)[-3:])
    starts = headers(file)
    if len(starts) > 1:
        body = r.choice(starts[:-1]) + LEDGER_HEADER.size + BODY_AT
        size = int.from_bytes(file.read_bytes()[body - 4 : body], "big")
        _flip(file, body + r.randrange(size), r)


def flip_in_header(directory: Path, r: random.Random) -> None:
    """Flips one bit in a header of the last file."""
    file = log_files(directory)[-1]
    starts = headers(file)
    if len(starts) > 1:
        _flip(file, r.choice(starts[:-1]) + r.randrange(LEDGER_HEADER.size), r)


HARMS: tuple[Callable[[Path, random.Random], None], ...] = (
    lose_log_tail, lose_queue_tails, lose_queues, lose_ledger_index, lose_committed, flip_in_record, flip_in_header,
)  # fmt: skip


def _zero(file: Path, start: int, stop: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(max(0, min(stop, file.stat().st_size) - start)))


def _flip(file: Path, at: int, r: random.Random) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0] ^ (1 << r.randrange(8))
        opened.seek(at)
        opened.write(bytes([byte]))
