"""The queues in Khepri, the metadata store of later nodes: replays the commands of its raft log, in order.

Earlier nodes keep their metadata in Mnesia's tables, which `node` reads. Transactions are programs, which are not run;
the one that deletes a queue is recognised by its name. Source: docs/format/rabbitmq.md 9.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storage_core.errors import FormatError, MqStoreError
from storage_core.files import system
from storage_core.formats.rabbitmq.erlang import external_term
from storage_core.rabbitmq.disk.detect import COORDINATION, names_in
from storage_core.rabbitmq.disk.raft_log import RaftLog, read_log, read_wals
from storage_core.rabbitmq.disk.span_reader import read_short_file

CONFIG, MACHINE = "config", b"khepri_machine"
RECORD = "amqqueue"
OF_VHOSTS = ["rabbitmq", "vhosts"]
QUEUE_DEPTH, VHOST_DEPTH = 5, 3
"""Lengths of the paths of a queue and of a virtual host."""
DELETES_QUEUE = "horus__rabbit_db_queue__-delete_in_khepri/"
"""Begins the name of the program by which nodes of 4.0 to 4.2 delete a queue."""
_FUN_SIZE, _FUN_NAME, _FUN_VALUES = 8, 1, 6
"""Size of a program's record, and the indices of its name and of the values that it closes over."""

Records = dict[tuple[bytes, bytes], tuple[Any, ...]]


def queue_records(folder: str) -> Records:
    """The records of all queues by virtual host and name; empty if a node's data directory has no such store, and only
    those up to the point where it cannot be read.
    """
    found: Records = {}
    for root, server in servers(folder):
        _replay(root, server, found)
    return found


def servers(folder: str) -> list[tuple[str, str]]:
    """The folders of the raft servers of Khepri in a node's data directory, as a folder and a name in it."""
    top = f"{folder}/{COORDINATION}"
    roots = [f"{top}/{name}" for name in sorted(names_in(top))]
    found = [(root, server) for root in roots for server in sorted(names_in(root))]
    return [(root, server) for root, server in found if MACHINE in _config(f"{root}/{server}/{CONFIG}")]


def _config(path: str) -> bytes:
    try:
        return read_short_file(path)
    except (FormatError, NotADirectoryError):
        return b""


def _replay(root: str, server: str, found: Records) -> None:
    try:
        log = read_log(root, server, read_wals(root))
        if log.snapshot is not None:
            found.update(_in_tree(log.snapshot.state))
        for command in _commands(root, log):
            _apply(found, command)
    except (MqStoreError, OSError):
        return


def _in_tree(state: Any) -> Iterator[tuple[tuple[bytes, bytes], tuple[Any, ...]]]:
    """The records of queues anywhere in a machine's state."""
    left = [state]
    while left:
        term = left.pop()
        if isinstance(term, tuple) and term and term[0] == "p_data":
            record = term[-1]
            if _is_queue(record):
                yield (record[1][1], record[1][3]), record
        elif isinstance(term, dict):
            left.extend(term.values())
        elif isinstance(term, tuple | list):
            left.extend(each for each in term if isinstance(each, dict | tuple | list))


def _is_queue(record: Any) -> bool:
    return isinstance(record, tuple) and len(record) > 1 and record[0] == RECORD and _is_resource(record[1])


def _is_resource(term: Any) -> bool:
    return isinstance(term, tuple) and len(term) == 4 and isinstance(term[1], bytes) and isinstance(term[3], bytes)


def _commands(root: str, log: RaftLog) -> Iterator[tuple[Any, ...]]:
    """The commands that may change queues."""
    opened: dict[int, int] = {}
    try:
        for entries in log.chunks():
            for number, position, size in entries[["file", "position", "size"]].tolist():
                if number not in opened:
                    opened[number] = system.open_read(f"{root}/{log.files[number]}")
                data = system.pread(opened[number], size, position)
                if b"vhosts" not in data:
                    continue
                entry = external_term.decode(data)
                if isinstance(entry, tuple) and len(entry) > 2 and entry[0] == "$usr" and isinstance(entry[2], tuple):
                    yield entry[2][3] if entry[2][0] == "dedup" and len(entry[2]) == 4 else entry[2]
    finally:
        for descriptor in opened.values():
            system.close(descriptor)


def _apply(found: Records, command: Any) -> None:
    """Applies {put, path, payload, options}, {delete, path, options}, or a {tx, program, arguments} that deletes."""
    if isinstance(command, tuple) and len(command) == 3 and command[0] == "tx":
        found.pop(_deleted_by(command[1]), None)
    if not isinstance(command, tuple) or len(command) < 3 or not isinstance(command[1], list):
        return
    path = command[1]
    if path[:2] != OF_VHOSTS:
        return
    names = [_name(part) for part in path[2:QUEUE_DEPTH]]
    is_queue = len(path) == QUEUE_DEPTH and path[3] == "queues"
    if command[0] == "delete" and len(path) == VHOST_DEPTH:
        for key in [key for key in found if key[0] == names[0]]:
            del found[key]
    elif command[0] == "delete" and is_queue:
        found.pop((names[0] or b"", names[2] or b""), None)
    elif command[0] == "put" and is_queue and isinstance(command[2], tuple) and _is_queue(command[2][-1]):
        key = (names[0] or b"", names[2] or b"")
        if key not in found or ("if_node_exists", "false") not in _conditions(path[-1]):
            found[key] = command[2][-1]


def _deleted_by(program: Any) -> tuple[bytes, bytes]:
    """The virtual host and the name of the queue that a program deletes, whatever its state; empty if it does not."""
    if isinstance(program, tuple) and len(program) == _FUN_SIZE and isinstance(program[_FUN_VALUES], list):
        values = program[_FUN_VALUES]
        queues = [each for each in values if _is_resource(each)]
        has_conditions = any(isinstance(each, list) and each for each in values)
        if str(program[_FUN_NAME]).startswith(DELETES_QUEUE) and len(queues) == 1 and not has_conditions:
            return queues[0][1], queues[0][3]
    return b"", b""


def _name(part: Any) -> bytes | None:
    """The name in a part of a path, given directly or by a condition."""
    return next((each for each in _conditions(part) if isinstance(each, bytes)), None)


def _conditions(part: Any) -> list[Any]:
    if isinstance(part, tuple) and len(part) == 2 and part[0] == "if_all" and isinstance(part[1], list):
        return part[1]
    return [part]
