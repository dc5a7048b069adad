"""Message files with holes, as nodes of 3.13 and later leave them, compared with a slow model of such a node's scan."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from storage_core.files import system
from storage_core.formats.rabbitmq.classic import message_file
from storage_core.rabbitmq.message_store import file_scan
from storage_core.rabbitmq.stream.live_locations import LiveLocations

CONTAINER = b"\x83h\x04w\x02mc"
OLD = b"\x83h\x06w\x0dbasic_message"


def scanned_by_a_node(data: bytes, needed: set[bytes]) -> dict[bytes, tuple[int, int]]:
    """Positions and sizes of the first record of each id that a queue needs, as a node of 4.0.5 finds them: at every
    byte it checks whether a record begins there (rabbitmq.md 6.8).
    """
    found: dict[bytes, tuple[int, int]] = {}
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        stop = at + 8 + size
        message_id = data[at + 8 : at + 24]
        if size >= 16 and data[stop : stop + 1] == b"\xff" and message_id in needed and message_id not in found:
            found[message_id] = at, size + 9
            at = stop + 1
        else:
            at += 1
    return found


def record(r: random.Random, head: bytes, size: int) -> tuple[bytes, bytes]:
    """An id and its record."""
    message_id = r.randbytes(16)
    return message_id, message_file.encode(message_id, head + r.randbytes(size))


def compacted(r: random.Random, head: bytes) -> tuple[bytes, set[bytes]]:
    """A file as a compaction may leave it at any moment, and the ids that queues need. Records, some of them no longer
    needed or without a marker, are mixed with zeros, parts of records and copies of earlier records.
    """
    parts, needed, before = [], set(), []
    for _ in range(r.randint(1, 25)):
        message_id, data = record(r, head, r.choice([1, 20, 300, 5000, 20_000]))
        kind = r.choice(["needed", "needed", "needed", "acknowledged", "unmarked", "half", "zeros", "copy"])
        if kind == "unmarked":
            data = data[:-1] + b"\0"
        elif kind == "half":
            data = data[: r.randrange(1, len(data))]
        elif kind == "zeros":
            data = bytes(r.choice([1, 7, 8, 9, 4000]))
        elif kind == "copy" and before:
            data = r.choice(before)
        if kind in {"needed", "unmarked", "half"}:
            needed.add(message_id)
        if kind == "needed":
            before.append(data)
        parts.append(data)
    return b"".join(parts), needed


def found_by(scan: file_scan.FileScan, needed: set[bytes]) -> dict[bytes, tuple[int, int]]:
    first: dict[bytes, tuple[int, int]] = {}
    rows = zip(scan.ids.tolist(), scan.positions.tolist(), scan.sizes.tolist(), strict=True)
    for message_id, position, size in sorted(rows, key=lambda row: row[1]):
        if message_id in needed:
            first.setdefault(message_id, (position, size))
    return first


@pytest.mark.parametrize("window", [100, 4096, 8 << 20])
def test_every_record_that_a_node_finds(window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_scan, "_WINDOW_SIZE", window)
    path = tmp_path / "0.rdq"
    holes = 0
    for number in range(60):
        data, needed = compacted(random.Random(number), CONTAINER)
        path.write_bytes(data)
        scan = file_scan.scan_file(str(path), "0.rdq", with_containers=True)
        assert found_by(scan, needed) == scanned_by_a_node(data, needed), number
        assert scan.damages == []
        holes += scan.stop < len(data)
    assert holes > 30


def test_one_container_in_a_store_makes_all_its_files_those_of_a_later_node(tmp_path: Path) -> None:
    r = random.Random(7)
    old, new = (record(r, head, 100) for head in (OLD, CONTAINER))
    (tmp_path / "0.rdq").write_bytes(bytes(500) + old[1])
    (tmp_path / "1.rdq").write_bytes(new[1])
    alone, _ = file_scan.scan_files(str(tmp_path), ["0.rdq", "0.rdq"])
    assert not len(alone.positions)
    assert [damage.reason for damage in alone.damages] == ["bytes after a record of length 0"]
    both = file_scan.scan_files(str(tmp_path), ["0.rdq", "1.rdq"])
    assert [scan.positions.tolist() for scan in both] == [[500], [0]]
    assert [scan.damages for scan in both] == [[], []]


@pytest.mark.parametrize("window", [100, 8 << 20])
@pytest.mark.parametrize("left", [0, 10, 3000])
def test_a_file_that_a_node_cuts_while_it_is_scanned(
    window: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan ends and finds the records that are left."""
    r = random.Random(left)
    path = tmp_path / "0.rdq"
    listed = [record(r, CONTAINER, 900)[1] for _ in range(40)]
    path.write_bytes(b"".join([*listed[:2], bytes(60), *listed[2:]]))
    monkeypatch.setattr(file_scan, "_WINDOW_SIZE", window)
    whole = system.stat

    def cut_after(name: str) -> system.FileStat:
        found = whole(name)
        os.truncate(path, left)
        return found

    monkeypatch.setattr(file_scan.system, "stat", cut_after)
    scan = file_scan.scan_file(str(path), "0.rdq")
    ends = [sum(map(len, listed[:number])) + (60 if number > 2 else 0) for number in range(1, 4)]
    assert len(scan.positions) == sum(end <= left for end in ends)


@pytest.mark.parametrize("later", ["whole", "with a hole"])
def test_a_running_node_s_files_before_the_first_container(later: str, tmp_path: Path) -> None:
    """They are searched like the later files, at once and when they are scanned again."""
    r = random.Random(7)
    folder = tmp_path / "msg_store_persistent"
    folder.mkdir()
    old, new, empty = record(r, OLD, 100), record(r, CONTAINER, 100), folder / "2.rdq"
    (folder / "0.rdq").write_bytes(bytes(500) + old[1])
    (folder / "1.rdq").write_bytes(new[1] if later == "whole" else bytes(500) + new[1])
    empty.write_bytes(b"")
    locations = LiveLocations(str(tmp_path))
    ids = np.array([old[0], new[0]], "V16")
    assert (locations.find(ids) >= 0).all()
    (folder / "0.rdq").write_bytes(bytes(700) + old[1])
    locations.forget()
    assert (locations.find(ids) >= 0).all()
