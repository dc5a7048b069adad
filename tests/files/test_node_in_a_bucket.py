"""The data directory of a RabbitMQ node with all types of queues, read from a bucket and from disk."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from connector.planning import Load
from storage_core.files.remote import registry
from storage_core.option_table import read_options
from tests.command_line.calls import run
from tests.golden.archive import GOLDEN
from tests.rabbitmq import golden
from tests.support.memory_bucket import Bucket

URI = "memory://b/x/node"


@pytest.fixture
def node(bucket: Bucket, tmp_path: Path) -> Path:
    """The directory; its copy is at `URI`."""
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(tmp_path)
    bucket.add_folder(tmp_path / "node", "x/node")
    return tmp_path / "node"


def rows(path: str, **options: str) -> pa.Table:
    """All rows as a load plans them, in its own columns."""
    with Load((path,), read_options(options)) as load:
        schema = load.available()
        plan = load.plan(tuple(schema.names))
    return pa.Table.from_batches([batch for piece in plan for batch in piece.read()], schema)


@pytest.mark.parametrize("kind", ["", "classic", "quorum", "stream"])
def test_each_type_of_queue_reads_the_same(node: Path, kind: str) -> None:
    options = {"queueType": kind} if kind else {}
    here = rows(str(node), **options)
    assert here.num_rows or kind == "stream"  # the only stream is empty
    assert rows(URI, **options).equals(here)


def test_the_virtual_hosts_are_those_of_the_queues(node: Path) -> None:
    for kind in ("classic", "quorum", "stream"):
        hosts = sorted(set(rows(str(node), queueType=kind)["vhost"].to_pylist()) - {None})
        for host in hosts:
            assert rows(URI, queueType=kind, vhost=host).equals(rows(str(node), queueType=kind, vhost=host))


def test_the_command_prints_the_same(node: Path) -> None:
    for call in (["cat"], ["cat", "--queue-type", "quorum"], ["ls", "--json"]):
        here, there = (run(call[0], path, *call[1:]) for path in (node, URI))
        assert there.stdout == here.stdout


def test_a_uri_is_not_followed(node: Path) -> None:
    done = run("cat", f"{URI}/msg_stores/vhosts/{golden.DEFAULT_VHOST}", "--follow", code=2)
    assert done.stderr == "mqstore: --follow: is not for a store at a URI; it reads one on a local disk\n"


@pytest.mark.parametrize("folder", ["", "/one", "/one/two", "/one/two/three"])
def test_nothing_above_a_bucket_is_taken_for_a_node(bucket: Bucket, tmp_path: Path, folder: str) -> None:
    """The tables of a node would be some folders above a vhost's or the streams' directory: in no other bucket."""
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(tmp_path)
    for store in ("msg_stores/vhosts/" + golden.DEFAULT_VHOST, "stream"):
        bucket.objects.clear()
        for path in sorted((tmp_path / "node" / store).rglob("*")):
            if path.is_file():
                bucket.add(f"{folder}/{path.relative_to(tmp_path / 'node' / store)}".lstrip("/"), path)
        for call, code in (("ls", 0), ("cat", int(store == "stream"))):  # the only stream is empty
            run(call, f"memory://b{folder}", code=code)
        registry.forget_all()
