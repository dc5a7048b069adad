"""A DLedger log: a header of 48 bytes precedes each record, and a separate index locates the headers.

Which entries count is up to the engine. Source of the rules: rocketmq.md 2.11.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as PackedStruct

import numpy as np
import numpy.typing as npt

from storage_core.compiled.loading import CompiledLoops
from storage_core.formats.java_numbers import whole_of
from storage_core.formats.layout import Bytes, Mask, Positions, struct, values_at
from storage_core.formats.rocketmq.message import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_SIZE
from storage_core.formats.rocketmq.record_walk import Stop, Walk
from storage_core.formats.spans import structs_at

LEDGER_HEADER = struct(
    "DLedger header",
    ("magic", ">i4", "1; -1 begins the blank end of a file"),
    ("size", ">i4", "length of header and record; in a blank end that of the rest of the file"),
    ("number", ">i8", "number of the record in the ledger"),
    ("term", ">i8", "term of the leader that appended it"),
    ("address", ">i8", "address of this header"),
    ("channel", ">i4", "0"),
    ("chain_crc", ">i4", "0: not used"),
    ("body_crc", ">i4", "0: not used"),
    ("body_size", ">i4", "length of the record"),
    size=48,
)

LEDGER_INDEX = struct(
    "DLedger index entry",
    ("magic", ">i4", "1"),
    ("address", ">i8", "address of the header"),
    ("size", ">i4", "length of header and record"),
    ("number", ">i8", "number of the record in the ledger"),
    ("term", ">i8", "term of the leader that appended it"),
    size=32,
)

LEDGER_MAGIC, BLANK_END = 1, -1
COMMITTED = "committedIndex"

_int, _uint = PackedStruct(">i").unpack_from, PackedStruct(">I").unpack_from
_loops = CompiledLoops("storage_core.formats.rocketmq.compiled.record_parts")


def walk_ledger(buffer: Bytes, start: int = 0) -> Walk:
    """`record_walk.walk` over a DLedger log, as a broker walks it.

    The record after a header counts whatever the header states; so does a record without a header. `starts` are those
    of the records, `stop` is where the next header would be.
    """
    if (loops := _loops.after()) is not None:
        starts, sizes, stop = loops.walk_ledger(buffer, start)
        return Walk(starts, sizes, stop, _reason_at(buffer, stop))
    starts = np.fromiter(_steps(buffer, start), np.int64)
    sizes = values_at(buffer, ">i4", starts).astype(np.int64)
    magics = values_at(buffer, ">u4", starts + BLANK.field("magic").offset)
    right = ((magics == MAGIC_V1) | (magics == MAGIC_V2)) & (sizes >= MIN_SIZE) & (starts + sizes <= len(buffer))
    count = len(starts) if right.all() else int(right.argmin())
    starts, sizes = starts[:count], sizes[:count]
    stop = int(starts[-1] + sizes[-1]) if count else start
    return Walk(starts, sizes, stop, _reason_at(buffer, stop))


def _steps(buffer: Bytes, position: int) -> Iterator[int]:
    """Positions of records, by adding up TOTALSIZE and headers, up to and including the first that begins no record."""
    view = buffer.data
    last = len(view) - BLANK.size
    while position <= last:
        at = position if _begins_record(view, position) else position + LEDGER_HEADER.size
        if at > last:
            return
        yield at
        (size,) = _int(view, at)
        if size < MIN_SIZE:
            return
        position = at + size


def _begins_record(view: memoryview, position: int) -> bool:
    (magic,) = _uint(view, position + BLANK.field("magic").offset)
    return magic in (MAGIC_V1, MAGIC_V2)


def _reason_at(buffer: Bytes, stop: int) -> Stop:
    view = buffer.data
    if stop > len(view) - BLANK.size:
        return Stop.TORN
    (first,), (second,) = _int(view, stop), _uint(view, stop + BLANK.field("magic").offset)
    if first == BLANK_END or second == MAGIC_BLANK:
        return Stop.BLANK
    if not first and not second:
        return Stop.END
    at = stop if _begins_record(view, stop) else stop + LEDGER_HEADER.size
    if at > len(view) - BLANK.size:
        return Stop.TORN
    return Stop.TORN if _begins_record(view, at) and _int(view, at)[0] >= MIN_SIZE else Stop.CORRUPT


def headers_at(buffer: Bytes, starts: Positions) -> npt.NDArray[np.void]:
    """The headers at positions, which must be wholly in the buffer. Shape (n,), dtype of LEDGER_HEADER."""
    return structs_at(buffer, LEDGER_HEADER.dtype, starts)


def right_headers(headers: npt.NDArray[np.void], addresses: Positions) -> Mask:
    """Which headers DLedger accepts as those of records at these addresses. Shape (n,)."""
    sizes = headers["size"].astype(np.int64)
    right: Mask = (headers["magic"] == LEDGER_MAGIC) & (headers["address"] == addresses)
    right &= (sizes > LEDGER_HEADER.size) & (headers["body_size"] + np.int64(LEDGER_HEADER.size) == sizes)
    return right


def stated_size(head: bytes) -> int:
    """The length of header and record that the first eight bytes of a header state."""
    return int.from_bytes(head[LEDGER_HEADER.field("size").offset :][:4], "big")


def committed_number(text: str) -> int:
    """The number of the last committed record in the `checkpoint` of a ledger; -1 if it states none."""
    pairs = (line.partition("=") for line in text.splitlines())
    found = next((value.strip() for name, _, value in pairs if name.strip() == COMMITTED), "")
    number = whole_of(found, 64)
    return -1 if number is None else number
