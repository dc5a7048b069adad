"""A faulty connection to a real S3 server: the right rows or a named one-line error, without secrets."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import StorageError
from storage_core.files.remote import registry
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.s3_server import KEY, SECRET, S3Server, s3_server

pytestmark = pytest.mark.real

NAME = "mixed-4.9.3"
TOKEN = "openSesameToken"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3faults")
    store = archive.unpack(NAME, root / "buckets" / "backups" / NAME)
    split = root / "buckets" / "queues" / NAME / "store"
    split.mkdir(parents=True)
    for part in store.iterdir():
        if part.name != "commitlog":
            (split / part.name).symlink_to(part)
    with s3_server(root) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    registry.forget_all()
    with faulty_proxy(server.endpoint) as made:
        yield made
    registry.forget_all()


def options(server: S3Server, proxy: FaultyProxy, **more: str) -> dict[str, str]:
    return {**server.options, "storage.endpoint": proxy.endpoint, **more}


def table(path: str, request: ScanRequest, **given: str) -> pa.Table:
    with open_store(path, **given) as store:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))


def local(server: S3Server) -> str:
    return str(server.folder / "backups" / NAME / "store")


@pytest.mark.parametrize("fault", ["", "503", "500", "reset", "short", "stall"])
def test_each_third_request_fails_and_the_rows_are_right(server: S3Server, proxy: FaultyProxy, fault: str) -> None:
    proxy.begin(fault, 10 if fault == "stall" else 3)
    given = options(server, proxy, **{"storage.timeout": "1" if fault == "stall" else "30"})
    found = table(f"s3://backups/{NAME}/store", ScanRequest(), **given)
    assert found.equals(table(local(server), ScanRequest()))
    assert (proxy.struck > 0) == bool(fault)


def test_a_token_that_expires_in_mid_scan_is_one_line(server: S3Server, proxy: FaultyProxy) -> None:
    uri = f"s3://backups/{NAME}/store"
    with open_store(uri, **options(server, proxy)) as store:
        plan = store.snapshot().plan(ScanRequest(min_partitions=4))
        proxy.begin("expired", 1)
        registry.forget_all()
        with pytest.raises(
            StorageError, match=r"bytes \d+ to \d+: ExpiredToken: the session token has expired"
        ) as caught:
            [list(piece.read()) for piece in plan]
    text = str(caught.value)
    assert text.startswith(f"StorageError: {uri}/")
    assert "\n" not in text
    assert not any(secret in text for secret in (KEY, SECRET, TOKEN))


def test_a_log_in_another_bucket(server: S3Server) -> None:
    """The queues are in one bucket, the log in another."""
    registry.forget_all()
    given = {**server.options, "commitLogPath": f"s3://backups/{NAME}/store/commitlog"}
    assert table(f"s3://queues/{NAME}/store", ScanRequest(), **given).equals(table(local(server), ScanRequest()))
    registry.forget_all()
