"""Messages with a host whose port is invalid: which of the served messages the clients of both real versions decode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import archive
from tests.real import truth
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support.odd_ports import give_ports

pytestmark = pytest.mark.real


@pytest.mark.parametrize("version", ["493", "533"])
@pytest.mark.parametrize("name", ["mixed-4.9.3", "mixed-5.3.3"])
def test_no_client_decodes_them_and_no_read_serves_them(name: str, version: str, tmp_path: Path) -> None:
    store, settings = archive.unpack(name, tmp_path), archive.info(name)["settings"]
    before = {message["physicalOffset"] for message in truth.ask(version, store, settings).messages}
    rows = read(store, in_partitions(1, **AS_BROKER), recovery=truth.RECOVERY[version])
    served = sorted(before & {row["physicalOffset"] for row in rows})
    odd, well = give_ports(store, served)
    stock = truth.ask(version, store, settings)
    assert {message["physicalOffset"] for message in stock.messages} == before - set(odd)
    assert set(well) <= before
    assert truth.check(store, stock, set(), 3, automatic=False) == []
