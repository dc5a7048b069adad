"""Streams of nodes of 3.13 and later, as far as the node's release decides what is delivered.

What the messages should look like was queried from nodes of 4.0.5 and 4.3.6 (tests/real/rabbitmq/test_protocols_4.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.stream_queues import delivered
from storage_core.formats.rabbitmq.stream_queues.log_files import INDEX_HEAD
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.stream_queues.directory import node_is_of_3_13
from tests.rabbitmq import stream_golden as golden
from tests.rabbitmq.amqp10 import counted, listed, section

WITHOUT_HEADER = b"".join(
    [
        section(0x72, listed(0xC1, [counted(0xA3, b"x-shop"), counted(0xA1, b"7"), counted(0xA3, b"own"), b"\x41"])),
        section(0x73, listed(0xC0, [b"\x98" + bytes(range(16)), *[b"\x40"] * 9, counted(0xA1, b"group")])),
        section(0x74, listed(0xC1, [counted(0xA1, b"raw"), counted(0xA0, b"\1\2")])),
        section(0x75, counted(0xA0, b"one")),
        section(0x75, counted(0xA0, b" and two")),
    ]
)


def later(folder: Path) -> Path:
    """A folder of streams that is now one of a node of 4.1 or later, to judge by its write-ahead log."""
    logs = folder.parent / "coordination" / "rabbit@host"
    logs.mkdir(parents=True)
    (logs / f"{1:016}.wal").write_bytes(b"RAWA\1")
    return folder


def test_a_message_without_a_header_section() -> None:
    """Clients of the stream protocol write such messages to nodes of all releases."""
    found = delivered.delivered(WITHOUT_HEADER, of_3_13=True)
    assert properties.decode(found.properties) == {
        "message_id": b"urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f", "app_id": b"group",
        "headers": [(b"raw", "S", b"\1\2"), (b"x-shop", "S", b"7")],
    }  # fmt: skip
    assert b"".join(WITHOUT_HEADER[start:stop] for start, stop in found.body) == b"one and two"
    earlier = delivered.delivered(WITHOUT_HEADER)
    assert properties.decode(earlier.properties) == {
        "message_id": b"00010203-0405-0607-0809-0a0b0c0d0e0f",
        "headers": [(b"x-message-id-type", "S", b"uuid"), (b"raw", "x", b"\1\2")],
    }
    assert [WITHOUT_HEADER[start:stop] for start, stop in earlier.body] == [b" and two"]


def test_the_rows_of_a_later_node(tmp_path: Path) -> None:
    folder = golden.unpack("s06_protocol_messages", tmp_path)
    before, after = golden.rows(folder), golden.rows(later(folder))

    def ids(rows: list[dict[str, Any]]) -> list[tuple[str | None, list[str]]]:
        return [
            (row["messageId"], sorted(name for name, _ in row["headers"] or [] if name[:2] == "x-")) for row in rows
        ]

    assert [row["body"] for row in after] == [row["body"] for row in before]
    assert ids(before)[1] == ("77", ["x-correlation-id-type", "x-message-id-type"])
    assert ids(after)[1] == ("77", [])
    assert [row["rawSections"] for row in after] == [row["rawSections"] for row in before]
    for row in after:
        assert delivered.delivered(row["rawSections"], of_3_13=True).properties == row["rawProperties"]


def test_what_shows_the_release_of_a_node(tmp_path: Path) -> None:
    folder = golden.unpack("s01_clean", tmp_path / "node")
    assert not node_is_of_3_13(str(folder))
    flags = tmp_path / "node-feature_flags"
    flags.write_text("[quorum_queue,stream_queue].\n")
    assert not node_is_of_3_13(str(folder))
    flags.write_text("[message_containers,quorum_queue].\n")
    assert node_is_of_3_13(str(folder))
    flags.unlink()
    server = tmp_path / "node" / "coordination" / "rabbit@host" / "RABBITUID"
    server.mkdir(parents=True)
    (server.parent / "00000001.wal").write_bytes(b"RAWA\1")
    (server / "config").write_text("#{machine => {module,rabbit_stream_coordinator,#{}}}.")
    assert not node_is_of_3_13(str(folder))
    (server / "config").write_text("#{machine => {module,khepri_machine,#{}}}.")
    assert node_is_of_3_13(str(folder))


@pytest.mark.parametrize("content", [INDEX_HEAD, INDEX_HEAD + bytes(28) + b"\1"])
def test_a_last_index_without_a_segment(tmp_path: Path, content: bytes) -> None:
    """A later node deletes such an index, left by a kill at the start of a segment; 3.10 does not start."""
    folder = golden.unpack("s10_torn_segment", tmp_path)
    whole = golden.rows(folder)
    (stream,) = (path for path in folder.iterdir() if path.is_dir())
    (stream / f"{10**6:020}.index").write_bytes(content)
    with pytest.raises(CorruptionError, match="a node does not start the stream"):
        golden.rows(folder)
    assert golden.rows(later(folder)) == whole
    with open_store(str(folder)) as store:
        lost = [finding for finding in store.verify() if "segment of the last index is missing" in finding.reason]
    assert len(lost) == (content != INDEX_HEAD)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 8), (8, 0), (3, 5), (40, 30)])
def test_a_new_stream_whose_files_were_not_written(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """A node of any release writes both heads again: the stream is empty."""
    folder = golden.unpack("s01_clean", tmp_path)
    (stream,) = (path for path in folder.iterdir() if path.is_dir())
    for path in stream.iterdir():
        path.write_bytes(bytes(sizes[path.suffix == ".index"]))
    assert golden.rows(folder) == []
    with open_store(str(folder)) as store:
        assert all(finding.position >= 0 for finding in store.verify())
