"""Stores in Azure's emulator: the same tables as on disk, copies there and back, a wrong key in one line.

`MQSTORE_AZURE=1` runs it (`make test-real-full`): it needs npm, which brings the emulator.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import copy_store, find_stores, open_store
from storage_core.errors import StorageError
from storage_core.files.remote import registry
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support.azure_server import KEY, azure_server
from tests.support.copied_stores import contents

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "MQSTORE_AZURE" not in os.environ, reason="brings Azurite by npm; make test-real-full sets MQSTORE_AZURE"
    ),
]

NAMES = ("mixed-4.9.3", "mixed-5.3.3", "shop-4.9.3", "damaged-flipped-body-abort-4.9.3")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    registry.forget_all()
    with azure_server(tmp_path_factory.mktemp("azure"), "backups") as given:
        yield given
    registry.forget_all()


def table(path: str, request: ScanRequest, **options: str) -> pa.Table:
    with open_store(path, **options) as store:
        snapshot = store.snapshot()
        batches = [batch for piece in snapshot.plan(request) for batch in piece.read()]
        return pa.Table.from_batches(batches, snapshot.schema(request))


@pytest.mark.parametrize("name", NAMES)
def test_rocketmq_stores_go_up_are_read_and_come_down(options: dict[str, str], name: str, tmp_path: Path) -> None:
    store, uri = archive.unpack(name, tmp_path), f"az://backups/a b/%LMQ% ü/{name}/store"
    copy_store(str(store), uri, **options)
    for scan in Scan:
        request = ScanRequest(scan=scan, mode=Mode.DROPMALFORMED)
        assert table(uri, request, **options).equals(table(str(store), request))
    copy_store(uri, str(tmp_path / "down"), **options)
    assert contents(tmp_path / "down") == contents(store)
    assert find_stores(f"az://backups/a*/%LMQ%*/{name}/st?re", **options) == [uri]


def test_a_vhost(options: dict[str, str], tmp_path: Path) -> None:
    vhost = golden.unpack("s1_mixed_clean_idle", tmp_path / "made") / golden.DEFAULT_VHOST
    uri = f"az://backups/vhosts/{vhost.name}"
    copy_store(str(vhost), uri, **options)
    request = ScanRequest(mode=Mode.DROPMALFORMED)
    assert table(uri, request, **options).equals(table(str(vhost), request))


def test_a_wrong_key_is_one_line_without_it(options: dict[str, str]) -> None:
    wrong = base64.b64encode(b"not the key").decode()
    registry.forget_all()
    with pytest.raises(StorageError) as caught:
        open_store("az://backups/x", **{**options, "storage.accessKey": wrong})
    text = str(caught.value)
    assert "\n" not in text
    assert "right to read or to list" in text
    assert not any(secret in text for secret in (KEY, wrong))
    registry.forget_all()
