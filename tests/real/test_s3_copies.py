"""Copies of stores to a real S3 server and back: the same files, from which a stock store of RocketMQ boots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core import open_store
from tests.golden import archive
from tests.rabbitmq import golden
from tests.real.oracle import Oracle
from tests.support.copied_stores import contents, served_rows
from tests.support.s3_server import KEY, SECRET, S3Server, s3_server

pytestmark = pytest.mark.real

VERSIONS = {"4.9.3": "493", "5.3.3": "533"}
BIG = 20 << 20
"""The size in bytes of a file that is uploaded in several parts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3copies")
    (root / "buckets" / "backups").mkdir(parents=True)
    with s3_server(root) as running:
        yield running


def command(server: S3Server, *words: object, **change: str) -> subprocess.CompletedProcess[str]:
    options = {**server.options, **change}
    access = [f"--storage={name.removeprefix('storage.')}={value}" for name, value in options.items()]
    call = [sys.executable, "-m", "command_line", "copy", *map(str, words), *access]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["mixed-4.9.3", "mixed-5.3.3"])
def test_a_stock_store_boots_from_a_downloaded_copy(server: S3Server, name: str, tmp_path: Path) -> None:
    store = archive.unpack(name, tmp_path)
    (store / "big").write_bytes(os.urandom(BIG))
    before, rows = contents(store), sorted(served_rows(str(store)))
    uri = f"s3://backups/a b/%LMQ% ü/{name}"
    up = command(server, store, uri, "--json")
    assert up.returncode == 0, up.stderr
    down = command(server, uri, tmp_path / "down" / "store", "--json")
    assert down.returncode == 0, down.stderr
    assert json.loads(down.stdout)["checked"] == "checksums"
    assert contents(tmp_path / "down" / "store") == before == contents(store)
    settings = archive.info(name)["settings"]
    with Oracle(VERSIONS[name[-5:]], tmp_path / "down" / "store", settings) as oracle:
        assert oracle.loaded
        oracle.ask(op="wait")
        answers = oracle.all_messages()
    assert len(answers) == len(rows) > 0
    assert sorted(served_rows(str(tmp_path / "down" / "store"))) == rows


def test_a_vhost_goes_up_and_down(server: S3Server, tmp_path: Path) -> None:
    vhost = golden.unpack("s1_mixed_clean_idle", tmp_path / "made") / golden.DEFAULT_VHOST
    assert command(server, vhost, "s3://backups/vhost").returncode == 0
    assert command(server, "s3://backups/vhost", tmp_path / "down").returncode == 0
    assert contents(tmp_path / "down") == contents(vhost)


def test_two_copies_do_not_mix(server: S3Server, tmp_path: Path) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    assert command(server, store, "s3://backups/once").returncode == 0
    again = command(server, store, "s3://backups/once")
    assert again.returncode == 2
    assert "there is already a complete copy of a store" in again.stderr
    (server.folder / "backups" / "once" / ".mqstore" / "manifest.json").unlink()
    half = command(server, "s3://backups/once", tmp_path / "down")
    assert (half.returncode, half.stderr.count("\n")) == (2, 1)
    assert "was not finished lies here" in half.stderr
    done = command(server, store, "s3://backups/once", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["resumedBytes"] == facts["bytes"] > 0
    with open_store("s3://backups/once", **server.options) as opened:
        assert opened.queues()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage.secretKey": "not-the-secret"}, "SignatureDoesNotMatch"),
        ({"storage.endpoint": "http://127.0.0.1:1"}, "nobody listens there"),
    ],
)
def test_a_wrong_access_is_one_line_without_the_key(
    server: S3Server, change: dict[str, str], message: str, tmp_path: Path
) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    done = command(server, store, "s3://backups/refused", **change)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not any(secret in done.stderr + done.stdout for secret in (KEY, SECRET, "not-the-secret"))


def test_no_such_bucket_is_one_line(server: S3Server, tmp_path: Path) -> None:
    done = command(server, archive.unpack("mixed-4.9.3", tmp_path), "s3://nobucket/x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "no such bucket" in done.stderr
