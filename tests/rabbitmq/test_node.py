"""The queue tables of a real node: they contain the queues that it listed, after a clean stop and after a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from struct import pack
from typing import Any
from zlib import adler32

import pyarrow as pa
import pytest

from storage_core import find_stores
from storage_core.errors import MqStoreError
from storage_core.formats.rabbitmq.erlang.external_term import FALSE, TRUE, Atom, Opaque, encode
from storage_core.rabbitmq import looks_like_store, open_store, stores_below
from storage_core.rabbitmq.disk import khepri, node
from storage_core.rabbitmq.disk.raft_log import read_log, read_wals
from storage_core.rabbitmq.stream_queues.directory import list_streams
from storage_core.store import ScanRequest
from tests.rabbitmq import golden

TABLES = golden.SNAPSHOTS.parent / "node"


@pytest.fixture(params=["clean", "killed"])
def data_directory(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A data directory with a real node's tables and a snapshot's vhosts, and the queues that the node listed."""
    folder = tmp_path / "rabbit@host"
    shutil.copytree(TABLES / request.param, folder)
    golden.unpack("s9_vhosts_kill9", folder / "msg_stores")
    return folder, json.loads((folder / "queues.json").read_text())


def test_declared_queues(data_directory: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, listed = data_directory
    found = node.declared_queues(str(folder / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST))
    assert {key: (queue.kind, json.loads(queue.arguments)) for key, queue in found.items()} == {
        (row["vhost"], row["name"]): (row["type"], {name: value for name, _, value in row["arguments"]})
        for row in listed
        if row["durable"]
    }
    assert all(queue.durable for queue in found.values())


@pytest.fixture
def of_4_3(tmp_path: Path) -> tuple[Path, dict[tuple[str, str], tuple[str, Any]]]:
    """The metadata store and the streams of a node of 4.3, and the durable queues that it listed."""
    with tarfile.open(TABLES / "khepri" / "node.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    rows = json.loads((TABLES / "khepri" / "queues.json").read_text())
    listed = {
        (row["vhost"], row["name"]): (row["type"], {name: value for name, _, value in row["arguments"]})
        for row in rows
        if row["durable"]
    }
    return tmp_path, listed


def kinds_of(folder: Path) -> dict[tuple[str, str], tuple[str, Any]]:
    found = node.queues_of_node(str(folder))
    return {key: (queue.kind, json.loads(queue.arguments)) for key, queue in found.items()}


def test_queues_in_khepri(of_4_3: tuple[Path, dict[tuple[str, str], tuple[str, Any]]]) -> None:
    folder, listed = of_4_3
    assert kinds_of(folder) == listed
    assert ("/", "later") in listed
    assert ("/", "lazy") not in listed
    (stream,) = list_streams(str(folder / "stream"))
    assert (stream.vhost, stream.queue) == ("/", "stream")


def append(folder: Path, commands: list[Any]) -> None:
    """Adds commands to a node's metadata store, in a write-ahead log of their own."""
    ((root, server),) = khepri.servers(str(folder))
    index, data = read_log(root, server, read_wals(root)).last_index, b"RAWA\1"
    for number, command in enumerate(commands, 1):
        entry = encode((Atom("$usr"), {}, command, Atom("noreply")))
        checked = pack(">QQ", index + number, 1) + entry
        data += pack(">BHH", 0, 0, len(server)) + server.encode() + pack(">II", adler32(checked), len(entry)) + checked
    (Path(root) / f"{999 + index:016}.wal").write_bytes(data)


def test_conditions_with_paths_in_khepri(of_4_3: tuple[Path, dict[tuple[str, str], tuple[str, Any]]]) -> None:
    """As in the log of a node whose metadata was moved from Mnesia: maps with lists as keys precede the queues."""
    folder, listed = of_4_3
    vhost = [Atom("rabbitmq"), Atom("vhosts"), b"/"]
    exists = {Opaque(encode(vhost)[1:]): (Atom("if_node_exists"), TRUE)}
    record = (Atom("amqqueue"), (Atom("resource"), b"/", Atom("queue"), b"moved"), TRUE, FALSE, Atom("none"), [])
    record = (*record, *[Atom("none")] * 13, Atom("rabbit_classic_queue"), {})
    commands = [
        (Atom("put"), [*vhost, Atom("user_permissions"), b"guest"], Atom("none"), {Atom("keep_while"): exists}),
        (Atom("put"), [*vhost, Atom("queues"), b"moved"], (Atom("p_data"), record), {}),
    ]
    append(folder, commands)
    assert kinds_of(folder) == {**listed, ("/", "moved"): ("classic", {})}


def test_queues_deleted_by_a_program_in_khepri(of_4_3: tuple[Path, dict[tuple[str, str], tuple[str, Any]]]) -> None:
    """As by nodes of 4.0 to 4.2; one of the latter may add conditions, which decide whether the queue is deleted."""
    folder, listed = of_4_3
    name = (Atom("resource"), b"/", Atom("queue"), b"later")

    def program(what: str, values: list[Any]) -> Any:
        literals = {(Atom("f"), 1): [Atom("vhosts")]}
        return Atom("tx"), (Atom("horus_fun"), Atom(what), b"FOR1", 0, [], literals, values, Atom("undefined")), []

    conditions = [(Atom("if_payload_version"), 1)]
    deletes = "horus__rabbit_db_queue__-delete_in_khepri/2-fun-0-__70546093"
    append(folder, [program("horus__other__-f/1-fun-0-__1", [name]), program(deletes, [name, conditions, FALSE])])
    assert kinds_of(folder) == listed
    append(folder, [program(deletes, [name, FALSE])])
    del listed["/", "later"]
    assert kinds_of(folder) == listed


def test_damage_in_khepri(of_4_3: tuple[Path, dict[tuple[str, str], tuple[str, Any]]]) -> None:
    """Only queues that the node had are found, whatever is cut or flipped."""
    folder, listed = of_4_3
    (log,) = folder.glob("coordination/*/*.wal")
    whole, draw = log.read_bytes(), random.Random(3)
    known = {key for key, _ in listed.items()} | {("/", "lazy")}
    for _ in range(30):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        log.write_bytes(data[: draw.choice((len(data), draw.randrange(len(data))))])
        assert set(kinds_of(folder)) <= known
    log.write_bytes(b"RAWA")
    assert kinds_of(folder) == {}


def test_queues_elsewhere_are_counted(data_directory: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, listed = data_directory
    paths = stores_below(str(folder))
    assert len(paths) == 3
    assert (
        find_stores(str(folder)) == find_stores(str(folder.parent)) == find_stores(str(folder / "msg_stores")) == paths
    )
    assert all(map(looks_like_store, paths))
    with open_store(next(path for path in paths if path.endswith(golden.DEFAULT_VHOST))) as store:
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        assert [line for line in snapshot.warnings() if "has 1 quorum queue and 1 stream queue; their messages" in line]
        rows = {row["queue"]: row for batch in store.view("queues") for row in batch.to_pylist()}
    assert (rows["quorum"]["type"], rows["quorum"]["messages"]) == ("quorum", None)
    assert json.loads(rows["prio"]["arguments"]) == {"x-max-priority": 3, "x-message-ttl": 60000}
    assert rows["prio"]["messages"] == 0
    assert rows["same.name"]["messages"] == 4
    assert {row["name"] for row in listed if row["vhost"] == "/" and row["durable"]} <= set(rows)


def test_a_node_without_tables(tmp_path: Path) -> None:
    golden.unpack("s9_vhosts_kill9", tmp_path / "msg_stores")
    assert node.declared_queues(str(tmp_path / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST)) == {}
    assert len(stores_below(str(tmp_path / "msg_stores"))) == 3
    assert len(stores_below(str(tmp_path / "msg_stores" / "vhosts"))) == 3
    assert stores_below(str(tmp_path / "nothing")) == []


@pytest.mark.parametrize("options", [{}, {"queue": "quorum"}])
def test_a_write_to_a_queue_of_another_type_is_refused(
    data_directory: tuple[Path, list[dict[str, Any]]], options: dict[str, str]
) -> None:
    """A node that starts deletes the files of a classic queue that it knows as a quorum queue."""
    folder, _ = data_directory
    path = next(path for path in stores_below(str(folder)) if path.endswith(golden.DEFAULT_VHOST))
    before = {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}
    rows = pa.table({"queue": ["prio", "quorum"], "body": [b"a", b"b"]})
    with open_store(path) as store, pytest.raises(MqStoreError, match="a quorum queue has this name, and a write"):
        store.append(rows.drop_columns(list(options)), **options)
    assert {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()} == before


def test_every_store_of_a_node_sees_that_it_runs(tmp_path: Path) -> None:
    """Its pid file lies beside the data directory, wherever in that a store lies."""
    with tarfile.open(TABLES / "kinds" / "node.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    stores = find_stores(str(tmp_path / "node"))
    assert {Path(store).parent.name for store in stores} == {"vhosts", "quorum", "node"}
    for running in (False, True):
        if running:
            (tmp_path / "node.pid").write_text(str(os.getpid()))
        for path in stores:
            with open_store(path) as store:
                assert store.state().running == running
