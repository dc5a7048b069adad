"""Tables and other files of a node, followed or replaced by a gigabyte of zeros: reading them takes little memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, FormatError
from storage_core.formats.rabbitmq.erlang import disk_log, external_term
from storage_core.formats.rabbitmq.stream_queues.log_files import HEAD_SIZE, INDEX_RECORD
from storage_core.rabbitmq.disk import definitions, node, span_reader
from storage_core.rabbitmq.disk.span_reader import read_table
from storage_core.rabbitmq.stream_queues.segment import read_index
from storage_core.store import Mode
from tests.rabbitmq import golden, quorum_golden, stream_golden

LENGTH, MOST_MEMORY = 1 << 30, 64 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path_factory.mktemp("clean")) / golden.DEFAULT_VHOST


@pytest.mark.parametrize("blank", [False, True], ids=["behind", "instead"])
@pytest.mark.parametrize("name", ["recovery.dets", "clean.dot", "file_summary.ets", "msg_store_index.ets"])
def test_a_table_of_a_clean_stop(name: str, blank: bool, clean: Path) -> None:
    path = clean / name if name == "recovery.dets" else clean / "msg_store_persistent" / name
    before, rows = path.read_bytes(), golden.table(clean).num_rows
    try:
        os.truncate(path, 0 if blank else len(before))
        os.truncate(path, LENGTH)
        with little_memory():
            assert golden.table(clean).num_rows == rows
    finally:
        path.write_bytes(before)


def test_the_table_and_a_snapshot_of_quorum_queues(tmp_path: Path) -> None:
    root = quorum_golden.unpack("q07_snapshot_with_messages", tmp_path)
    (snapshot,) = root.rglob("snapshot.dat")
    for path in (root / "meta.dets", snapshot):
        os.truncate(path, LENGTH)
    with little_memory():
        found = quorum_golden.rows(root, mode=Mode.PERMISSIVE)
    assert all(isinstance(row, dict) for row in found)


@pytest.mark.parametrize("blank", [False, True], ids=["behind", "instead"])
def test_tables_that_list_queues(blank: bool, tmp_path: Path) -> None:
    path = tmp_path / node.DUMP_FILE
    path.write_bytes(b"" if blank else disk_log.encode([external_term.encode((1, 2))]))
    os.truncate(path, LENGTH)
    with little_memory():
        assert len(node.queues_of_node(str(tmp_path))) == 0


def test_the_index_of_a_stream(tmp_path: Path) -> None:
    root = stream_golden.unpack("s01_clean", tmp_path)
    path = next(root.rglob("*.index"))
    before = path.read_bytes()
    assert len(read_index(str(path))) == (len(before) - HEAD_SIZE) // INDEX_RECORD.size
    os.truncate(path, LENGTH)
    with little_memory():
        rows = read_index(str(path))
    assert rows[: len(before) // INDEX_RECORD.size].tobytes().startswith(before[HEAD_SIZE:])


def test_definitions(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_bytes(b"{}")
    os.truncate(path, LENGTH)
    with little_memory():
        assert definitions.arguments(str(tmp_path / "store"), "/") == {}


@pytest.mark.parametrize(
    "text",
    ['{"queues": [{"name"', "[1]", '{"queues": 5}', '{"queues": [{"vhost": "/"}]}', '{"vhosts": ["/"]}',
     '{"queues": [{"vhost": "/", "name": "q", "arguments": [1]}]}'],
)  # fmt: skip
def test_what_are_no_definitions_is_not_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(text)
    with pytest.raises(CorruptionError, match=r"definitions\.json.*mend the file or move it away"):
        definitions.write(str(tmp_path / "store"), "/", {"q": {}})
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"queues": [{"vhost": "/", "name": "q"}], "users": [1]}'])
def test_definitions_that_are_there_are_added_to(text: str, tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(text)
    definitions.write(str(tmp_path / "store"), "/", {"q": {"x-max-priority": 3}})
    found = json.loads(path.read_text())
    assert [(each["name"], each["arguments"]) for each in found["queues"]] == [("q", {"x-max-priority": 3})]
    assert found.get("users") == ([1] if "users" in text else None)


def test_long_definitions_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MOST_BYTES", 1 << 20)
    path = tmp_path / "definitions.json"
    before = json.dumps({"queues": [], "users": ["u" * (1 << 20)]}).encode()
    path.write_bytes(before)
    with pytest.raises(CorruptionError, match=r"definitions\.json.*longer than the 1 MiB"):
        definitions.write(str(tmp_path / "store"), "/", {"q": {}})
    assert path.read_bytes() == before


def test_content_after_the_most_bytes(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"head" + bytes(100))
    with path.open("r+b") as file:
        file.seek(LENGTH)
        file.write(b"end")
    with little_memory(), pytest.raises(FormatError, match="longer than the 16 MiB"):
        read_table(str(path), b"head", most=16 << 20)
    with little_memory():
        assert len(read_table(str(path), b"else", most=16 << 20)) <= span_reader.PIECE_SIZE
