"""Messages with a born or store host whose port does not exist: no client decodes them, so no read serves them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, RowError
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.reference.served import AS_BROKER, Row, in_partitions, read
from tests.support.odd_ports import ODD, give_ports

NAME = "mixed-4.9.3"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return archive.unpack(NAME, tmp_path)


def rows(store: Path, **how: object) -> dict[int, Row]:
    return {row["physicalOffset"]: row for row in read(store, in_partitions(1, **how))}


def test_rows_are_those_that_clients_decode(store: Path) -> None:
    before = rows(store, **AS_BROKER)
    odd, well = give_ports(store, sorted(before))
    after = rows(store, **AS_BROKER)
    assert after.keys() == before.keys() - set(odd)
    assert [after[at][which].rpartition(":")[2] for at, which in well.items()] == ["65535"] * len(well)


def test_what_the_modes_say_of_one(store: Path) -> None:
    before = rows(store, **AS_BROKER)
    odd, _ = give_ports(store, sorted(before))
    with pytest.raises(CorruptionError, match="the port of the born or store host is above 65535: no client decodes"):
        rows(store, mode=Mode.FAILFAST)
    shown = rows(store, mode=Mode.PERMISSIVE, columns=("physicalOffset", "body", "corruption"))
    corrupt = {at for at, row in shown.items() if row["corruption"] is not None}
    assert corrupt == set(odd)
    assert all(shown[at]["body"] is None for at in odd)


def test_the_log_has_them_and_a_lookup_has_not(store: Path) -> None:
    before = rows(store, **AS_BROKER)
    keyed = [at for at, row in sorted(before.items()) if row["key"]]
    odd, _ = give_ports(store, keyed)
    assert set(odd) <= rows(store, scan=Scan.LOG, **AS_BROKER).keys()
    for at in odd:
        word = before[at]["key"].split()[0]
        found = rows(store, keys=(word,), **AS_BROKER)
        assert at not in found
        with open_store(str(store)) as opened:
            few = opened.snapshot().read(ScanRequest(keys=(word,), **AS_BROKER))
            assert {row["physicalOffset"] for batch in few for row in batch.to_pylist()} == found.keys()


def test_verify_names_them_and_repair_keeps_the_messages(store: Path) -> None:
    before = rows(store, **AS_BROKER)
    odd, _ = give_ports(store, sorted(before))
    with open_store(str(store)) as opened:
        findings = [finding for finding in opened.verify() if finding.kind == "impossible port"]
        assert len(findings) == len(odd) == len(ODD)
        assert "serves the message, which no client decodes" in findings[0].effect
        opened.repair()
    assert rows(store, **AS_BROKER).keys() == before.keys()
    with open_store(str(store)) as opened:
        assert "impossible port" not in {finding.kind for finding in opened.verify()}


def test_none_is_written(tmp_path: Path) -> None:
    rows = pa.table({"topic": ["orders"], "body": [b"x"], "bornHost": ["10.0.0.1:65536"]})
    with open_store(str(tmp_path / "new"), "rocketmq") as opened, pytest.raises(RowError, match="a port has 16 bits"):
        opened.append(rows)
