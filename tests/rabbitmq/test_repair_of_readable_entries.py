"""What `repair` must not drop: messages that some consumers read, and entries of the other version of an index."""

from __future__ import annotations

import binascii
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.rabbitmq import open_store
from storage_core.store import Mode
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden, writing
from tests.rabbitmq.amqp10 import counted, listed, section
from tests.support.rabbitmq_harm import SMALL, index_file, make

TABLES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")


def made(root: Path, bodies: list[bytes], **options: object) -> Path:
    with open_store(str(root), {}) as store:
        store.append(pa.table({"body": pa.array(bodies, pa.binary())}), queue="a", **options)
    return root


def kill(root: Path) -> None:
    for path in (root / "recovery.dets", *(root / "msg_store_persistent" / name for name in TABLES)):
        path.unlink()


def contents(root: Path) -> dict[str, object]:
    return {name: seen for name, seen in fingerprint(root).items() if ".mqstore" not in name and name != "."}


def container() -> bytes:
    """A message by AMQP 1.0 with a uuid among its application properties: AMQP 0-9-1 has none."""
    properties = section(0x73, listed(0xC0, []))
    own = section(0x74, listed(0xC1, [counted(0xA1, b"h"), b"\x98" + bytes(range(16))]))
    stored = properties + own + section(0x75, counted(0xA0, b"two"))
    content = (Atom("v1"), [], stored, 0, len(properties), len(properties + own), 0x75)
    annotations = {Atom("x"): b"", Atom("rk"): [b"q"], Atom("id"): b"i" * 16, Atom("d"): Atom("true")}
    return et.encode((Atom("mc"), Atom("mc_amqp"), content, annotations))


@pytest.mark.parametrize("killed", [False, True])
def test_a_message_that_another_protocol_reads_stays(tmp_path: Path, killed: bool) -> None:
    root = made(tmp_path / "vhosts" / "v", [b"one", b"two", b"three"], queueArguments=writing.VERSION_2)
    (queue,) = (root / "queues").iterdir()
    bodies, index, term = (queue / "0.qs").read_bytes(), bytearray((queue / "0.qi").read_bytes()), container()
    record = struct.pack(">IBHB", len(term), 1, binascii.crc32(term) & 0xFFFF, 0) + term
    index[64 + 32 + 4 : 64 + 32 + 20] = struct.pack(">QII", len(bodies), len(term), 0)
    (queue / "0.qs").write_bytes(bodies + record)
    (queue / "0.qi").write_bytes(index)
    if killed:
        kill(root)
    before = contents(root)
    with open_store(str(root)) as store:
        assert [(finding.kind, finding.repairable) for finding in store.verify()] == [("unreadable message", False)]
        assert list(store.repair(dry_run=True)) == []
        assert list(store.repair()) == []
    assert contents(root) == before


def test_a_queue_whose_conversion_was_interrupted(tmp_path: Path) -> None:
    """Version 1 entries are acknowledged in the journal, although the directory counts as one of version 2."""
    root = made(tmp_path / "vhosts" / "v", [b"one", b"x" * 5000, b"three"])
    other = made(tmp_path / "others" / "v", [b"one"], queueArguments=writing.VERSION_2)
    (queue,), (second,) = (list((each / "queues").iterdir()) for each in (root, other))
    for name in ("0.qi", "0.qs"):
        (queue / name).write_bytes((second / name).read_bytes())
    kill(root)
    for path in (root / "msg_store_persistent").glob("*.rdq"):
        path.write_bytes(b"")

    def rows() -> list[tuple[int, bytes]]:
        found = golden.table(root, mode=Mode.FAILFAST, columns=("sequenceId", "body")).to_pylist()
        return [(row["sequenceId"], row["body"]) for row in found]

    before = rows()
    with open_store(str(root)) as store:
        done = list(store.repair())
        assert list(store.verify()) == []
    assert [line.partition(": ")[2] for line in done] == ["sequence id 1: the message is gone, its entry is dropped"]
    assert rows() == before == [(0, b"one"), (2, b"three")]


@pytest.mark.parametrize("killed", [True, False])
def test_entries_of_version_2_whose_messages_are_gone(killed: bool, tmp_path: Path) -> None:
    """They are cleared where they are: the queue has no journal."""
    bodies = [b"one", b"x" * 5000, b"three", b"y" * 5000]
    root = made(tmp_path / "vhosts" / "v", bodies, queueArguments=writing.VERSION_2)
    (root / "msg_store_persistent" / "0.rdq").write_bytes(b"")
    if killed:
        kill(root)
    (queue,) = (root / "queues").iterdir()
    before = {path.name for path in queue.iterdir()}
    with open_store(str(root)) as store:
        done = list(store.repair())
        assert sum("the message is gone, its entry is dropped" in line for line in done) == 2
        assert list(store.verify()) == []
    assert {path.name for path in queue.iterdir()} == before
    assert golden.table(root, columns=("body",))["body"].to_pylist() == [b"one", b"three"]


@pytest.mark.parametrize("clean", [True, False])
def test_segments_of_another_size(clean: bool, tmp_path: Path) -> None:
    """A header is rebuilt like the others, and entries without a message are dropped where they are."""
    store = writing.small(tmp_path, classic_queue_index_v2_segment_entry_count=50)
    bodies = [b"%d" % number * (1 if number % 40 else 5000) for number in range(230)]
    store.append(pa.table({"body": bodies}), queue="q", queueArguments=writing.VERSION_2)
    root = Path(store.path)
    (queue,) = (root / "queues").iterdir()
    index = bytearray((queue / "3.qi").read_bytes())
    index[4] = 9
    (queue / "3.qi").write_bytes(index)
    kept = [number for number in range(230) if clean or number % 40]
    if not clean:
        kill(root)
        for path in (root / "msg_store_persistent").glob("*.rdq"):
            path.write_bytes(b"")
    store.repair()
    assert list(store.verify()) == []
    found = golden.table(root, columns=("sequenceId", "body"))
    assert found.to_pylist() == [{"sequenceId": number, "body": bodies[number]} for number in kept]


def test_a_header_whose_range_includes_other_segments(tmp_path: Path) -> None:
    """An entry without a message is dropped in the file that lists it."""
    store = writing.small(tmp_path, classic_queue_index_v2_segment_entry_count=5)
    store.append(pa.table({"body": [b"x" * 5000, b"one"] * 6}), queue="q", queueArguments=writing.VERSION_2)
    root = Path(store.path)
    (queue,) = (root / "queues").iterdir()
    index = (queue / "0.qi").read_bytes()
    (queue / "0.qi").write_bytes(queue_v2.encode_header(queue_v2.INDEX_MAGIC, 0, 500) + index[queue_v2.HEADER.size :])
    kill(root)
    for path in (root / "msg_store_persistent").glob("*.rdq"):
        path.write_bytes(b"")
    store.repair()
    assert list(store.verify()) == []
    assert golden.table(root, columns=("sequenceId",))["sequenceId"].to_pylist() == [1, 3, 5, 7, 9, 11]


def test_bytes_like_a_record_of_another_segment(tmp_path: Path) -> None:
    """They are damage, even in a short segment; records that lead to messages may mean that `.config` is another's."""
    root = make(tmp_path / "store", "v", False)
    before = golden.table(root)
    last = index_file(root, SMALL, "2.idx")
    intact = last.read_bytes()
    last.write_bytes(intact + bytes([0x90, 200]) + bytes(32))
    with open_store(str(root)) as store:
        store.repair()
        assert list(store.verify()) == []
    assert last.read_bytes() == intact
    assert golden.table(root).equals(before)
