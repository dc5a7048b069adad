"""Every snapshot of a real node: the same messages, in the same order, and no byte or time of a file changed."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.errors import CorruptionError
from storage_core.rabbitmq import open_store, stores_below
from storage_core.store import Mode, ScanRequest
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden
from tests.support.rabbitmq_damage import edit


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("name", golden.NAMES)
def test_every_queue_as_the_node_delivered_it(name: str, partitions: int, tmp_path: Path) -> None:
    vhosts = golden.unpack(name, tmp_path)
    before = fingerprint(vhosts)
    rows = {
        path: golden.by_queue(golden.table(Path(path), min_partitions=partitions)) for path in stores_below(str(vhosts))
    }
    expected = {path: {} for path in rows}
    for queue in golden.truth(name)["queues"]:
        if queue["messages"]:
            listed = [golden.without_properties(message) for message in queue["messages"]]
            expected[str(vhosts / queue["vhost_dir"])][queue["name"]] = listed
    found = {
        path: {name: [golden.as_delivered(row) for row in listed] for name, listed in queues.items()}
        for path, queues in rows.items()
    }
    assert found == expected
    assert fingerprint(vhosts) == before


_COLUMNS = {
    "content_type": "contentType",
    "content_encoding": "contentEncoding",
    "delivery_mode": "deliveryMode",
    "priority": "priority",
    "correlation_id": "correlationId",
    "reply_to": "replyTo",
    "expiration": "expiration",
    "message_id": "messageId",
    "type": "type",
    "user_id": "userId",
    "app_id": "appId",
}


def _json(kind: str, value: Any) -> Any:
    """A header of the truth as the JSON value that a row shows."""
    if kind == "table":
        return {name: _json(inner, item) for name, inner, item in value}
    if kind == "array":
        return [_json(inner, item) for inner, item in value]
    if kind == "binary":
        return base64.b64encode(bytes.fromhex(value["hex"])).decode()
    if kind == "decimal":
        return value[1] / 10 ** value[0]
    return value


def _header(kind: str, value: Any) -> Any:
    if kind == "longstr" and isinstance(value, dict):
        return bytes.fromhex(value["hex"]).decode("utf-8", "replace")
    return value if kind == "longstr" else _json(kind, value)


@pytest.mark.parametrize("name", ["s1_mixed_clean_idle", "s3_mixed_kill9"])
def test_properties_and_headers(name: str, tmp_path: Path) -> None:
    rows = golden.by_queue(golden.table(golden.unpack(name, tmp_path) / golden.DEFAULT_VHOST))
    checked = 0
    for queue in golden.truth(name)["queues"]:
        for row, message in zip(rows.get(queue["name"], []), queue["messages"], strict=True):
            properties = message["properties"]
            assert {ours: row[ours] for ours in _COLUMNS.values()} == {
                ours: properties.get(theirs) for theirs, ours in _COLUMNS.items()
            }
            headers = message.get("headers")
            if headers is None:
                assert row["headers"] is None
                continue
            # Of repeated names the last one wins.
            wanted = {header[0]: header[1:] for header in headers}
            found = dict(row["headers"])
            assert {
                key: value if wanted[key][0] == "longstr" else json.loads(value) for key, value in found.items()
            } == {key: _header(*value) for key, value in wanted.items()}
            checked += len(wanted)
    assert checked >= 40


def test_times(tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    found = golden.table(path, topics=("d.ttl", "g.headers"), columns=("queue", "timestamp", "expiresAt", "expiration"))
    rows = found.to_pylist()
    ttl = [row for row in rows if row["queue"] == "d.ttl"]
    assert len(ttl) == 10
    assert {row["expiresAt"].year for row in ttl if row["expiration"]} <= {2024, 2025, 2026, 2027}
    # The one timestamp of this store is in the year 36812, which neither Python nor Spark can represent.
    assert {row["timestamp"] for row in rows} == {None}


def test_columns_and_their_order(tmp_path: Path) -> None:
    path = golden.unpack("s7_gc_clean", tmp_path) / golden.DEFAULT_VHOST
    columns = ("store", "guid", "queue", "location", "file", "position", "sequenceId", "vhost")
    found = golden.table(path, columns=columns)
    assert tuple(found.schema.names) == columns
    for row in found.to_pylist():
        assert row["store"] == golden.DEFAULT_VHOST
        assert (row["vhost"], row["queue"], row["location"]) == ("/", "gc.q", "store")
        with open(path / row["file"], "rb") as file:
            head = os.pread(file.fileno(), 24, row["position"])
        assert head[8:].hex() == row["guid"]


def test_partitions_pickle_and_cut_by_records(tmp_path: Path) -> None:
    path = golden.unpack("s6_2048_clean_busy", tmp_path) / golden.DEFAULT_VHOST
    with open_store(str(path)) as store:
        request = ScanRequest(max_records_per_partition=1000, columns=("sequenceId",))
        plan = pickle.loads(pickle.dumps(store.snapshot().plan(request)))
    sizes = [sum(batch.num_rows for batch in partition.read()) for partition in plan]
    assert sizes == [1000, 1000, 1000, 1000, 1000, 74]
    ids = [i for partition in plan for batch in partition.read() for i in batch.column(0).to_pylist()]
    assert ids == sorted(set(ids))


def test_acknowledged_entries_that_are_still_on_disk(tmp_path: Path) -> None:
    path = golden.unpack("s5_16384_kill9", tmp_path) / golden.DEFAULT_VHOST
    served = golden.table(path, columns=("sequenceId",))
    found = golden.table(path, include_acked=True, columns=("sequenceId", "acked", "body", "size"))
    assert (served.num_rows, found.num_rows) == (22000, 23616)
    acked = found.filter(found["acked"])
    assert acked.num_rows == 1616
    assert set(served["sequenceId"].to_pylist()) == set(
        found.filter(pa.compute.invert(found["acked"]))["sequenceId"].to_pylist()
    )
    assert "acked" not in served.schema.names


def test_acknowledged_entries_whose_message_is_gone(tmp_path: Path) -> None:
    """The index still has them, but the message store does not: their rows have a position and no message."""
    path = golden.unpack("s5_16384_kill9", tmp_path) / golden.DEFAULT_VHOST
    found = golden.table(path, include_acked=True, columns=("sequenceId", "acked", "location")).to_pylist()
    gone = {row["sequenceId"] for row in found if row["acked"] and row["location"] == "store"}
    (path / "msg_store_persistent" / "0.rdq").write_bytes(b"")
    rows = golden.table(path, include_acked=True, columns=("sequenceId", "acked", "body", "guid", "file")).to_pylist()
    empty = [row for row in rows if row["body"] is None]
    assert gone
    assert {row["sequenceId"] for row in empty} == gone
    assert all(row["acked"] and row["guid"] is None and row["file"].endswith(".idx") for row in empty)


def test_all_modes_give_the_same_rows_of_an_undamaged_store(tmp_path: Path) -> None:
    path = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    strict = golden.table(path)
    assert golden.table(path, mode=Mode.DROPMALFORMED).equals(strict)
    permissive = golden.table(path, mode=Mode.PERMISSIVE)
    assert permissive.drop_columns(["corruption"]).equals(strict)
    assert permissive["corruption"].null_count == permissive.num_rows


def test_the_range_in_a_version_2_header_is_not_believed(tmp_path: Path) -> None:
    """A real node derives the sequence ids from the file's number, so a flipped bit of the range loses nothing."""
    path = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    whole = golden.table(path)
    files = sorted(path.glob("queues/*/*.qi"))
    assert {file.name for file in files} >= {"0.qi", "1.qi"}
    for file in files:
        for bit in (8 * 12 + 4, 8 * 8, 8 * 20 + 3, 8 * 19 + 4, 8 * 13):
            edit(file, lambda data: data.__setitem__(bit // 8, data[bit // 8] ^ 1 << bit % 8))  # noqa: B023
            assert golden.table(path).equals(whole), (file.name, bit)
            edit(file, lambda data: data.__setitem__(bit // 8, data[bit // 8] ^ 1 << bit % 8))  # noqa: B023


def test_a_version_2_segment_of_a_number_that_no_queue_reaches(tmp_path: Path) -> None:
    path = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    file = sorted(path.glob("queues/*/1.qi"))[0]
    file.rename(file.with_name(f"{1 << 51}.qi"))
    with pytest.raises(CorruptionError, match="are not a segment"):
        golden.table(path)
