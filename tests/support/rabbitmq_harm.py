"""Small stores of RabbitMQ vhosts, stopped cleanly or killed, and every kind of damage to their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import ets_dump
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.disk import recovery_terms
from tests.support.rabbitmq_damage import edit

SMALL, LARGE = "small", "large"
COUNT, LATER = 40, 6
"""Messages of each queue in its segments, and further ones in its journal."""
SETTINGS = {"queue_index_segment_entry_count": 16, "msg_store_file_size_limit": 60_000}


def body(queue: str, number: int) -> bytes:
    text = f"{queue} {number:04} ".encode()
    return text * (5000 // len(text) + 1 if queue == LARGE else 6)


def make(root: Path, vhost: str, clean: bool) -> Path:
    """Makes a store with two queues, one with messages in the index and one with messages in the shared store."""
    with open_store(str(root), {"vhost": vhost, **SETTINGS}) as store:
        rows = [(queue, body(queue, number)) for number in range(COUNT) for queue in (SMALL, LARGE)]
        store.append(pa.table({"queue": [queue for queue, _ in rows], "body": [data for _, data in rows]}))
        with store.queue(SMALL) as small, store.queue(LARGE) as large:
            for queue, name in ((small, SMALL), (large, LARGE)):
                for number in range(COUNT, COUNT + LATER):
                    queue.publish(body(name, number))
                queue.sync()
            if not clean:
                small._vhost.abandon(RuntimeError("killed"))
    return root


def there(store: Path) -> tuple[str, ...]:
    """The queues in the store. The name of a queue whose stub is damaged is found only by asking for that name."""
    with open_store(str(store)) as opened:
        names = opened.snapshot().topics((SMALL, LARGE))
    return tuple(queue for queue in (SMALL, LARGE) if queue in names)


def index_file(store: Path, queue: str, name: str) -> Path:
    vhost = (store / ".vhost").read_bytes()
    return store / "queues" / paths.queue_directory(vhost, queue.encode()) / name


def message_files(store: Path) -> list[Path]:
    folder = store / "msg_store_persistent"
    return sorted(folder.glob("*.rdq"), key=lambda path: int(path.stem))


def record_positions(path: Path) -> list[int]:
    data, found, at = path.read_bytes(), [], 0
    while at + 8 <= len(data):
        found.append(at)
        at += int.from_bytes(data[at : at + 8], "big") + 9
    return found


def _in_record(number: int, change: Callable[[bytearray, int], None]) -> Callable[[Path], None]:
    """Changes a record of the second message file."""

    def harm(store: Path) -> None:
        path = message_files(store)[1]
        position = record_positions(path)[number]
        edit(path, lambda data: change(data, position))

    return harm


def _unmark(data: bytearray, at: int) -> None:
    data[at + 8 + int.from_bytes(data[at : at + 8], "big")] = 0


def _unmark_and_spoil(data: bytearray, at: int) -> None:
    _unmark(data, at)
    data[at + 30] ^= 0x55


def _blank(data: bytearray, at: int) -> None:
    data[at : at + 600] = bytes(600)


def _wrong_size(data: bytearray, at: int) -> None:
    data[at] = 0x11


def _spoil(data: bytearray, at: int) -> None:
    data[at + 26] = 99


def _cut_last(store: Path) -> None:
    edit(message_files(store)[-1], lambda data: data.__delitem__(slice(len(data) - 100, None)))


def _tail(extra: bytes) -> Callable[[Path], None]:
    return lambda store: edit(message_files(store)[-1], lambda data: data.extend(extra))


def _segment(queue: str, change: Callable[[bytearray], None], number: int = 1) -> Callable[[Path], None]:
    return lambda store: edit(index_file(store, queue, f"{number}.idx"), change)


def _spoil_middle(data: bytearray) -> None:
    data[len(data) // 2 - 60 : len(data) // 2 + 60] = bytes(120)


def _spoil_first_term(data: bytearray) -> None:
    data[34] = 99


def _spoil_properties(data: bytearray, at: int = 0) -> None:
    """Makes the first property list from `at` on declare a priority that it does not contain."""
    data[data.index(b"\x00\x00\x00\x03\x10\x00\x02", at) + 4] |= 0x08


def _spell(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Replaces the first `old` by `new`."""

    def change(data: bytearray) -> None:
        at = data.index(old)
        data[at : at + len(old)] = new

    return change


def _change_id(data: bytearray) -> None:
    """Changes the message id of the first record of a segment."""
    data[5] ^= 0x10


def _mark_first(data: bytearray) -> None:
    data[0:0] = bytes([0x40, 3])


def _mark_twice(data: bytearray) -> None:
    """Appends two marks of one message, of which the first acknowledges it."""
    data.extend(bytes([0x40, 4]) * 2)


def _publish_twice(data: bytearray) -> None:
    data.extend(data[: 34 + int.from_bytes(data[30:34], "big")])


def _journal(queue: str, change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    return lambda store: edit(index_file(store, queue, "journal.jif"), change)


def _deliver_twice(data: bytearray) -> None:
    deliver = (2 << 62 | COUNT).to_bytes(8, "big")
    at = bytes(data).index(deliver) + 8
    data[at:at] = deliver


def _lone_deliver(data: bytearray) -> None:
    data.extend((2 << 62 | 9_000).to_bytes(8, "big"))


def _count(difference: int) -> Callable[[Path], None]:
    """Changes all reference counts of the table."""

    def harm(store: Path) -> None:
        path = store / "msg_store_persistent" / "msg_store_index.ets"
        rows = ets_dump.decode_index(path.read_bytes()).copy()
        rows["references"] = np.maximum(rows["references"] + difference, 0)
        path.write_bytes(ets_dump.encode_index(rows))

    return harm


def _terms(change: Callable[[recovery_terms.QueueTerms], recovery_terms.QueueTerms]) -> Callable[[Path], None]:
    def harm(store: Path) -> None:
        path = store / "recovery.dets"
        path.write_bytes(recovery_terms.encode(map(change, recovery_terms.decode(path.read_bytes()).values())))

    return harm


def _empty(terms: recovery_terms.QueueTerms) -> recovery_terms.QueueTerms:
    return replace(
        terms, segments={}, next_sequence_id=0, next_deliver_sequence_id=0, persistent_count=0, persistent_bytes=0
    )


def _more_bytes(difference: int) -> Callable[[Path], None]:
    return _terms(lambda terms: replace(terms, persistent_bytes=terms.persistent_bytes + difference))


def _swap_places(store: Path) -> None:
    """Swaps the places of two messages of the same length in the store's table."""
    path = store / "msg_store_persistent" / "msg_store_index.ets"
    rows = ets_dump.decode_index(path.read_bytes()).copy()
    for name in ("file", "position"):
        rows[name][:2] = rows[name][1::-1]
    path.write_bytes(ets_dump.encode_index(rows))


def _unexpected(store: Path) -> None:
    (store / "msg_store_persistent" / "copy of 0.rdq").write_bytes(b"x")
    index_file(store, LARGE, "notes.txt").write_bytes(b"xx")


def _ignored(store: Path) -> None:
    (store / "msg_store_persistent" / "notes.txt").write_bytes(b"x")
    index_file(store, LARGE, "notes.txt").write_bytes(b"xx")


def _unnumbered(store: Path) -> None:
    index_file(store, LARGE, "copy of 0.idx").write_bytes(b"xx")


def _interrupted_compaction(store: Path) -> None:
    """Ends the second message file in damage and puts the rest of it into its `.rdt`."""
    path = message_files(store)[1]
    at = record_positions(path)[3]
    data = path.read_bytes()
    path.with_suffix(".rdt").write_bytes(data[at:])
    path.write_bytes(data[:at] + bytes(50))


def _replace(name: str, data: bytes) -> Callable[[Path], None]:
    def harm(store: Path) -> None:
        (store / name).write_bytes(data)

    return harm


def _rename(queue: str) -> Callable[[Path], None]:
    return lambda store: edit(index_file(store, queue, paths.STUB_FILE), lambda data: data.__setitem__(-2, 0x21))


def _remove(name: str) -> Callable[[Path], None]:
    return lambda store: (store / name).unlink()


CLEAN_DOT, INDEX = "msg_store_persistent/clean.dot", "msg_store_persistent/msg_store_index.ets"


@dataclass(frozen=True)
class Harm:
    """Damage done to a store that was stopped cleanly or killed, and the number of messages whose bytes are lost."""

    clean: bool
    kinds: str
    """The kinds of damage that `verify` then finds, separated by commas."""
    apply: Callable[[Path], None]
    lost: int = 0


UNREADABLE = "unreadable message"
EMBEDDED = (
    ("exchange of another kind", "", b"exchange", b"exchangf"),
    ("exchange that is no resource", UNREADABLE, b"resource", b"resourcd"),
    ("content of another class", UNREADABLE, b"content\x61\x3c", b"content\x61\x3d"),
    ("content of an unknown protocol", UNREADABLE, b"amqp_0_9_1", b"amqp_0_9_0"),
    ("message that may be persistent", UNREADABLE, b"\x04true", b"\x04trud"),
)
HARMS: dict[str, Harm] = {
    "clean: a record without its marker": Harm(True, "message, unreadable message", _in_record(2, _unmark)),
    "clean: a record without its marker and id": Harm(
        True, "message, unreadable message", _in_record(2, _unmark_and_spoil), lost=1
    ),
    "clean: a message that does not decode": Harm(True, "unreadable message", _in_record(2, _spoil), lost=1),
    "clean: a hole in a message file": Harm(True, "blank tail, unreadable message", _in_record(2, _blank), lost=1),
    "clean: a record of a wrong size": Harm(True, "torn tail, unreadable message", _in_record(2, _wrong_size), lost=1),
    "clean: a message file that ends early": Harm(
        True, "dangling index entry, torn tail, wrong reference count", _cut_last, lost=1
    ),
    "clean: a message file is lost": Harm(
        True, "dangling index entry, wrong reference count", lambda store: message_files(store)[1].unlink(), lost=12
    ),
    "clean: properties that do not decode": Harm(True, "unreadable message", _in_record(2, _spoil_properties), lost=1),
    "clean: embedded properties that do not decode": Harm(
        True, "unreadable message", _segment(SMALL, _spoil_properties), lost=1
    ),
    "clean: an embedded message that does not decode": Harm(
        True, "unreadable message", _segment(SMALL, _spoil_first_term), lost=1
    ),
    "clean: an index table is lost": Harm(True, "unusable tables", _remove(INDEX)),
    "clean: clean.dot is garbage": Harm(True, "unusable tables", _replace(CLEAN_DOT, b"{a, ")),
    "clean: counts too low": Harm(True, "dangling index entry", _count(-1)),
    "clean: counts too high": Harm(True, "wrong reference count", _count(1)),
    "clean: terms that say empty": Harm(True, "index against message store", _terms(_empty)),
    "clean: terms that count less": Harm(
        True, "index against message store", _terms(lambda t: replace(t, persistent_count=t.persistent_count - 3))
    ),
    "clean: terms that count fewer bytes": Harm(True, "index against message store", _more_bytes(-1)),
    "clean: terms that count more bytes": Harm(True, "index against message store", _more_bytes(1)),
    "clean: two places of the table are swapped": Harm(True, UNREADABLE, _swap_places, lost=2),
    "clean: recovery.dets is garbage": Harm(True, "unusable tables", _replace("recovery.dets", b"no table")),
    "clean: files that no node writes": Harm(True, "unexpected file", _unexpected),
    "clean: a queue's directory is lost": Harm(
        True,
        "wrong reference count",
        lambda store: shutil.rmtree(index_file(store, LARGE, "x").parent),
        lost=COUNT + LATER,
    ),
    "clean: a segment's torn end": Harm(True, "segment", _segment(SMALL, lambda data: data.extend(b"\xc0\x01abc"))),
    "clean: a journal's torn end": Harm(
        True, "torn journal", _journal(LARGE, lambda data: data.extend(b"\0\0\0\0\0\0\0\x63abc"))
    ),
    "clean: a deliver twice": Harm(True, "index against message store, journal", _journal(LARGE, _deliver_twice)),
    "clean: a deliver of nothing": Harm(True, "journal", _journal(LARGE, _lone_deliver)),
    "clean: a third mark": Harm(True, "index against message store, segment", _segment(LARGE, _mark_twice), lost=1),
    "clean: a publish twice": Harm(True, "segment", _segment(SMALL, _publish_twice)),
    "clean: a segment without a number": Harm(True, "unexpected file", _unnumbered),
    "killed: a segment without a number": Harm(False, "unexpected file", _unnumbered),
    "killed: files that a node ignores": Harm(False, "unexpected file", _ignored),
    "killed: a record without its marker": Harm(False, "index against message store, message", _in_record(2, _unmark)),
    "killed: a record without its marker and id": Harm(
        False, "index against message store, message", _in_record(2, _unmark_and_spoil), lost=1
    ),
    "killed: a message that does not decode": Harm(False, "unreadable message", _in_record(2, _spoil), lost=1),
    "killed: a hole in a message file": Harm(
        False, "blank tail, index against message store", _in_record(2, _blank), lost=1
    ),
    "killed: a record of a wrong size": Harm(
        False, "index against message store, torn tail", _in_record(2, _wrong_size), lost=1
    ),
    "killed: a message file that ends early": Harm(False, "index against message store, torn tail", _cut_last, lost=1),
    "killed: zeros after the last record": Harm(False, "blank tail", _tail(bytes(500))),
    "killed: bytes after the last record": Harm(False, "torn tail", _tail(b"\x01\x02" * 50)),
    "killed: an interrupted compaction": Harm(
        False, "blank tail, index against message store", _interrupted_compaction
    ),
    "killed: properties that do not decode": Harm(
        False, "unreadable message", _in_record(2, _spoil_properties), lost=1
    ),
    "killed: embedded properties that do not decode": Harm(
        False, "unreadable message", _segment(SMALL, _spoil_properties), lost=1
    ),
    "killed: an embedded message that does not decode": Harm(
        False, "unreadable message", _segment(SMALL, _spoil_first_term), lost=1
    ),
    "killed: a segment's torn end": Harm(False, "segment", _segment(SMALL, lambda data: data.extend(b"\xc0\x01abc"))),
    "killed: zeros after a segment's end": Harm(False, "segment", _segment(LARGE, lambda data: data.extend(bytes(60)))),
    "killed: a hole in a segment": Harm(
        False, "index against message store, segment", _segment(LARGE, _spoil_middle), lost=4
    ),
    "killed: a hole in a segment of embedded messages": Harm(
        False, "segment, unreadable message", _segment(SMALL, _spoil_middle), lost=2
    ),
    "killed: a third mark": Harm(False, "segment", _segment(LARGE, _mark_twice), lost=1),
    "killed: a mark before its publish": Harm(False, "segment", _segment(LARGE, _mark_first)),
    "killed: a publish twice": Harm(False, "segment", _segment(SMALL, _publish_twice)),
    "killed: a segment of zeros": Harm(
        False,
        "unexpected file",
        _segment(LARGE, lambda data: data.__setitem__(slice(0, None), bytes(len(data)))),
        lost=16,
    ),
    "killed: a journal's torn end": Harm(
        False, "torn journal", _journal(LARGE, lambda data: data.extend(b"\0\0\0\0\0\0\0\x63abc"))
    ),
    "killed: a deliver twice": Harm(False, "journal", _journal(LARGE, _deliver_twice)),
    "killed: a deliver of nothing": Harm(False, "journal", _journal(LARGE, _lone_deliver)),
    "clean: .vhost is garbage": Harm(True, "unexpected file", _replace(".vhost", bytes(range(256)))),
    "killed: .vhost is garbage": Harm(False, "unexpected file", _replace(".vhost", bytes(range(256)))),
    "clean: an embedded message of another id": Harm(True, "wrong message id", _segment(SMALL, _change_id)),
    "killed: an embedded message of another id": Harm(False, "wrong message id", _segment(SMALL, _change_id)),
    **{
        f"{stop}: an embedded {name}": Harm(
            stop == "clean", kinds, _segment(SMALL, _spell(old, new)), lost=int(bool(kinds))
        )
        for name, kinds, old, new in EMBEDDED
        for stop in ("clean", "killed")
    },
    "clean: a queue's name is another": Harm(True, "unexpected file", _rename(LARGE)),
    "killed: a queue's name is another": Harm(False, "unexpected file", _rename(SMALL)),
    "killed: a journal of zeros": Harm(
        False, "", _journal(LARGE, lambda data: data.__setitem__(slice(0, None), bytes(len(data)))), lost=LATER
    ),
}
