"""The benchmarks on tiny stores: the written bytes are a right store, and each question without Spark is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from benchmarks import find_core
from benchmarks.__main__ import main
from benchmarks.make_node_queues import make_quorum, make_stream
from benchmarks.make_store import StoreShape, make_store
from benchmarks.measure import Rounds, Run, interleaved
from benchmarks.rabbitmq import make_rabbitmq_store, paging_queue
from benchmarks.report import Finding, Section
from benchmarks.sources import unpacked
from benchmarks.write import write_rows
from benchmarks.write_core import append_core
from storage_core import open_store
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.store import ScanRequest


def rows_of(path: str) -> list[dict]:
    partitions = open_store(path).snapshot().plan(ScanRequest())
    return [row for partition in partitions for batch in partition.read() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "shape",
    [
        StoreShape(500, 98, file_size=40_000),
        StoreShape(100, 1060, queue_count=64),
        StoreShape(50, 98, queue_count=1, topic_count=1),
        StoreShape(300, 98, crashed=True),
    ],
    ids=str,
)
def test_a_made_store_is_read_whole(tmp_path: Path, shape: StoreShape) -> None:
    rows = rows_of(make_store(str(tmp_path / "store"), shape))
    assert sorted(row["key"] for row in rows) == [f"ORD-{number:010d}" for number in range(shape.message_count)]
    assert {row["size"] for row in rows} == {shape.record_size}
    assert {len(row["body"]) for row in rows} == {shape.body_size}
    assert len({(row["topic"], row["queueId"]) for row in rows}) == min(shape.queue_count, shape.message_count)
    assert {len(row["properties"]) for row in rows} == {4}


def test_queues_hold_the_hash_of_the_tag(tmp_path: Path) -> None:
    path = make_store(str(tmp_path / "store"), StoreShape(512, 98))
    for tag in ("create", "closed"):
        requests = ScanRequest(tags=(tag,))
        batches = [batch for part in open_store(path).snapshot().plan(requests) for batch in part.read()]
        assert Counter(row["tags"] for batch in batches for row in batch.to_pylist()) == {tag: 128}


def test_the_hand_written_reader_reads_the_same(tmp_path: Path) -> None:
    shape = StoreShape(200, 98)
    path = make_store(str(tmp_path / "store"), shape)
    log = next((tmp_path / "store" / "commitlog").iterdir())
    with log.open("rb") as file:
        data = file.read(shape.log_size)
    ours = [(row["topic"], row["queueId"], row["queueOffset"], row["key"], row["body"]) for row in rows_of(path)]
    assert sorted(unpacked(data)) == sorted(ours)


def test_questions_without_spark_answer(tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ["--scale", "0.0005", "--rounds", "1", "--folder", str(tmp_path), "--results", str(results)]
    done = CliRunner().invoke(main, ["decoder", "shape", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = (results / "results.md").read_text()
    assert "64 interleaved queues over one queue: bytes read" in text
    assert "100 B, verifyCrc=true: messages" in text
    assert str(tmp_path) not in text, "a path of this machine is in the results"
    assert (results / "results.png").read_bytes().startswith(b"\x89PNG")


def test_the_append_core_is_measured_without_the_real_store(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MQSTORE_ORACLE", str(tmp_path / "nothing"))
    section = Section("Write", "")
    append_core(section, tmp_path, 0.0002, 1)
    titles = [finding.title for finding in section.findings]
    assert titles == [
        "100 B, no Spark: append into a new store",
        "1 KB, no Spark: append into a new store",
        "a commit of 1,000 rows: large store over small",
        "the same: bytes read",
    ]
    assert capsys.readouterr().out.count("RocketMQ's own store is left out") == 2
    assert list(tmp_path.iterdir()) == []


def test_the_paging_queue_is_measured(tmp_path: Path) -> None:
    section = Section("RabbitMQ", "")
    paging_queue(tmp_path, 0.005, 1, section)
    assert [finding.title.rpartition(": ")[2] for finding in section.findings] == ["publish", "fetch and acknowledge"]
    assert all(finding.value > 0 and finding.gate == 200_000 for finding in section.findings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [make_stream, make_quorum])
def test_a_made_queue_of_a_node_is_read_whole(make: Callable[[Path, int, int], str], tmp_path: Path) -> None:
    rows = rows_of(make(tmp_path, 5_000, 100))
    assert len(rows) == 5_000
    assert {len(row["body"]) for row in rows} == {100}
    numbers = [row.get("streamOffset", row.get("raftIndex")) for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + 5_000))


def test_a_made_rabbitmq_store_is_read_whole(tmp_path: Path) -> None:
    rows = rows_of(make_rabbitmq_store(str(tmp_path / "store"), 1_000, 200))
    assert {row["messageId"] for row in rows} == {f"message-{number}" for number in range(1_000)}
    assert Counter(row["queue"] for row in rows) == dict.fromkeys(["orders", "ship", "refund", "payment"], 250)
    assert {len(row["body"]) for row in rows} == {200}
    assert {row["location"] for row in rows} == {"index"}


def test_rows_to_write_are_as_many_as_asked_and_every_body_is_whole(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", 1_000, 98)
    table = pq.read_table(tmp_path / "rows")
    assert table.num_rows == len(set(table["key"].to_pylist())) == 1_000
    assert {len(body) for body in table["body"].to_pylist()} == {98}
    assert len(set(zip(table["topic"].to_pylist(), table["queueId"].to_pylist(), strict=True))) == 16


def test_finding_without_spark_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_core, "KEYS", 20)
    shape = StoreShape(3_000, 98, index=Geometry(500, 1_001))
    path, section = make_store(str(tmp_path / "store"), shape), Section("Find", "")
    find_core.find_core(section, path, shape, tmp_path, 0.001, 1)
    values = {finding.title.rpartition(": ")[2]: finding.value for finding in section.findings}
    assert 40 <= values["4 KB pages of them read for one key"] <= 40 * 4 * 9
    assert "view index, 6,000 entries" in values
    assert sorted(path.name for path in (tmp_path / "store" / "index").iterdir())[0] == "20231114221320000"


def test_contenders_take_turns() -> None:
    order: list[str] = []
    interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warm_ups=1)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    order.clear()
    interleaved({"a": lambda: order.append("a")}, rounds=2, warm_ups=1, between=lambda: order.append("-"))
    assert order == ["a", "-", "a", "-", "a"]


def test_ratios_are_taken_within_a_round() -> None:
    fast, slow = [Run(t, t, 0.0) for t in (1.0, 4.0, 1.0)], [Run(t, t, 0.0) for t in (2.0, 8.0, 50.0)]
    assert Rounds({"fast": fast, "slow": slow}).faster("fast", "slow") == 2.0


def test_a_gate_is_reached_or_not() -> None:
    assert Finding("x", 0.6, "%", 0.6).reached
    assert not Finding("x", 1.21, "×", 1.2, at_most=True).reached
    assert Finding("x", 1.0, "×").reached is None
