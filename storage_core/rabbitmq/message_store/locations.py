"""Where the persistent message store keeps each message: from its tables after a clean stop, else from its files.

Reads only. Source: rabbitmq.md 1.5, 4.1, 6.1, 6.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage_core.errors import FormatError
from storage_core.files import system
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import disk_log, erlang_text, ets_dump
from storage_core.rabbitmq.disk.damage import Damage
from storage_core.rabbitmq.disk.span_reader import TABLE_SIZE, read_table
from storage_core.rabbitmq.message_store.file_scan import scan_file, scan_files

INDEX_MODULE = "rabbit_msg_store_ets_index"
ROW_SHARE = 8
"""Most bytes of index rows per byte of records."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class MessageLocations:
    """Where messages are stored. `rows` are of dtype INDEX_ROW (`references` is -1 if a scan found them), in any order.

    `files` maps file numbers to paths below the store, `sizes` to their lengths; `clean` means that the tables of a
    clean stop were used, otherwise `why` states what was missing.
    """

    rows: npt.NDArray[np.void]
    files: dict[int, str]
    sizes: dict[int, int]
    clean: bool
    why: str = ""
    damages: list[Damage] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = _keys(self.rows["id"])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, ids: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """Row number of each id (dtype V16), -1 where there is none."""
        found = np.full(len(ids), -1, np.int64)
        if not len(self.rows):
            return found
        keys = _keys(ids)
        at = np.searchsorted(self._keys, keys)
        waiting = np.arange(len(ids))
        while len(waiting):  # ids with equal keys are compared one by one; a second round is all but impossible
            inside = at[waiting] < len(self._keys)
            waiting = waiting[inside]
            waiting = waiting[self._keys[at[waiting]] == keys[waiting]]
            row = self._order[at[waiting]]
            same = _equal(self.rows["id"][row], ids[waiting])
            found[waiting[same]] = row[same]
            waiting = waiting[~same]
            at[waiting] += 1
        return found


def _halves(ids: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(ids).view(np.uint64).reshape(-1, 2)


def _keys(ids: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    halves = _halves(ids)
    return halves[:, 0] ^ (halves[:, 1] * _ODD)


def _equal(left: npt.NDArray[np.void], right: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = (_halves(left) == _halves(right)).all(axis=1)
    return same


def read_locations(root: str, clients: Iterable[bytes], tables: str | None = None) -> MessageLocations:
    """Reads the persistent store below `root` as a node would whose queues have the references `clients`.

    `tables` is the folder of the tables of the last clean stop, if it is not the store's own.
    """
    folder = f"{root}/{paths.PERSISTENT_FOLDER}"
    tables = folder if tables is None else tables
    try:
        names = system.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return MessageLocations(np.empty(0, ets_dump.INDEX_ROW), {}, {}, False, "there is no message store")
    why = ""
    if any(paths.number_of(name, paths.COMPACTION_SUFFIX) is not None for name in names):
        why = "a compaction was interrupted"
    why = why or _unclean(tables, set(clients))
    if not why:
        try:
            files = _message_files(names)
            sizes = _sizes(root, files)
            most = TABLE_SIZE + ROW_SHARE * sum(sizes.values())
            data = read_table(f"{tables}/{paths.INDEX_FILE}", disk_log.MAGIC_BYTES, most=most)
            return MessageLocations(ets_dump.decode_index(data), files, sizes, True)
        except FormatError as error:
            why = f"{paths.INDEX_FILE} cannot be read ({error.reason})"
    return _scanned(root, names, why)


def _sizes(root: str, files: dict[int, str]) -> dict[int, int]:
    return {number: system.stat(f"{root}/{path}").size for number, path in files.items()}


def _message_files(names: list[str]) -> dict[int, str]:
    numbers = {paths.number_of(name, paths.MESSAGE_SUFFIX): name for name in names}
    return {n: f"{paths.PERSISTENT_FOLDER}/{name}" for n, name in sorted(numbers.items(), key=_number) if n is not None}


def _number(item: tuple[int | None, str]) -> int:
    return -1 if item[0] is None else item[0]


def _unclean(folder: str, clients: set[bytes]) -> str:
    """Why a node would not trust the tables; empty if it would."""
    for name in (paths.CLEAN_FILE, paths.SUMMARY_FILE, paths.INDEX_FILE):
        if not system.exists(f"{folder}/{name}"):
            return f"there is no {name}: the store was not stopped cleanly"
    try:
        ets_dump.decode_summary(read_table(f"{folder}/{paths.SUMMARY_FILE}", disk_log.MAGIC_BYTES))
        terms = erlang_text.parse(read_table(f"{folder}/{paths.CLEAN_FILE}").decode("utf-8", "replace"))
    except FormatError as error:
        return f"the store was not stopped cleanly ({error.reason})"
    values = {term[0]: term[1] for term in terms if isinstance(term, tuple) and len(term) == 2}
    # Nodes with only one kind of index do not name it.
    if values.get("index_module", INDEX_MODULE) != INDEX_MODULE:
        return f"{paths.CLEAN_FILE} names another index module"
    listed = values.get("client_refs")
    if not isinstance(listed, list) or not all(isinstance(ref, bytes) for ref in listed):
        return f"{paths.CLEAN_FILE} lists no queues"
    return "" if set(listed) == clients else f"{paths.CLEAN_FILE} and {paths.RECOVERY_FILE} list different queues"


def _scanned(root: str, names: list[str], why: str) -> MessageLocations:
    files = _message_files(names)
    parts, damages = [], []
    for number, scan in zip(list(files), scan_files(root, list(files.values())), strict=True):
        parts.append(scan.rows(number))
        damages += scan.damages
        leftover = f"{number}{paths.COMPACTION_SUFFIX}"
        if leftover in names and scan.reason == "end":
            # A node appends the leftover to the file, but never sees what follows a blank or torn record.
            extra = -1 - number
            files[extra] = f"{paths.PERSISTENT_FOLDER}/{leftover}"
            appended = scan_file(f"{root}/{files[extra]}", files[extra])
            parts.append(appended.rows(extra))
            damages += appended.damages
    rows = np.concatenate(parts) if parts else np.empty(0, ets_dump.INDEX_ROW)
    return MessageLocations(youngest(rows), files, _sizes(root, files), False, why, damages)


def youngest(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """One row for each id: the last one in a file; across several files a node's order is not defined."""
    if not len(rows):
        return rows
    backwards = rows[::-1]
    # If two of 10^9 ids had the same key, a message would be lost: compare whole ids.
    halves = _halves(backwards["id"])
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    ordered = halves[order]
    first = np.ones(len(order), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return backwards[np.sort(order[first])]


def file_sizes(root: str, folder: str = paths.PERSISTENT_FOLDER) -> dict[str, int]:
    """Sizes of the message files of one store, by path below `root`, in the order of their numbers."""
    try:
        found = {e.name: e.size for e in system.entries(f"{root}/{folder}") if not e.is_directory}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    numbered = {paths.number_of(name, paths.MESSAGE_SUFFIX): name for name in found}
    ordered = sorted(number for number in numbered if number is not None)
    return {f"{folder}/{numbered[number]}": found[numbered[number]] for number in ordered}
