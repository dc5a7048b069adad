"""`info`, `topics` and `offsets --at`: the overview of a store."""

from __future__ import annotations

from pathlib import Path

from storage_core import open_store
from storage_core.files.lock import FileLock
from tests.command_line.calls import lines, run
from tests.golden.archive import fingerprint, names, unpack
from tests.rabbitmq import golden


def test_info(rocket: Path, damaged: Path, rabbit: Path, node: Path, both: Path) -> None:
    known = lines(run("info", rocket, "--json"))[0]
    queues = lines(run("ls", rocket, "--json"))
    assert (known["engine"], known["version"], known["clean"], known["running"]) == ("rocketmq", "4.9", True, False)
    assert known["messages"] == sum(row["messages"] for row in queues)
    assert known["bytes"] == sum(row["bytes"] for row in queues)
    assert known["firstStoreTimestamp"] == min(row["firstStoreTimestamp"] for row in queues)
    assert known["lag"] == sum(row["lag"] for row in lines(run("offsets", rocket, "--json")))
    assert (known["cutBytes"], known["cutOffset"], known["notes"]) == (0, None, [])
    cut = lines(run("info", damaged, "--json"))[0]
    assert (cut["clean"], cut["messages"], cut["cutBytes"], cut["cutOffset"]) == (False, 68, 130136, 17320)
    vhost = lines(run("info", rabbit, "--json"))[0]
    assert (vhost["vhost"], vhost["clean"], vhost["messages"], vhost["unacknowledged"]) == ("/", True, 182, 21)
    assert "groups" not in run("info", rabbit).stdout
    assert not known["replicated"]
    assert [row["vhost"] for row in lines(run("info", node, "--json"))] == ["/", "other", None, None]
    assert run("info", both).stdout.count("\nengine ") == 2


def test_info_says_that_a_store_is_only_read(tmp_path: Path) -> None:
    store = unpack("stopped-4.9.3", tmp_path, "rocketmq/ledger")
    assert lines(run("info", store, "--json"))[0]["replicated"]
    expected = "read by the rules of 4.9; its log is a DLedger log, which mqstore does not change\n"
    assert expected in run("info", store).stdout


SEEN_BY_READING_ALL = {
    "damaged-checkpoint-lost-4.9.3", "damaged-flipped-body-4.9.3", "damaged-index-header-4.9.3",
    "damaged-index-lost-4.9.3", "damaged-queue-tail-lost-abort-4.9.3", "damaged-queues-lost-4.9.3",
    "damaged-zeroed-tail-abort-4.9.3",
}  # fmt: skip


def test_info_names_repair_where_it_sees_that_there_is_something_to_mend(tmp_path: Path) -> None:
    named = set()
    for name in names():
        store = unpack(name, tmp_path / name)
        with open_store(str(store)) as opened:
            if opened.state().repairable:
                named.add(name)
                assert any(finding.repairable for finding in opened.verify())
    assert named == {name for name in names() if name.startswith("damaged-")} - SEEN_BY_READING_ALL
    for name in golden.NAMES:
        store = golden.unpack(name, tmp_path / name) / golden.DEFAULT_VHOST
        with open_store(str(store)) as opened:
            found = list(opened.verify())
            assert opened.state().repairable == bool(found), name
    shown = run("info", tmp_path / "damaged-torn-tail-4.9.3").stdout
    assert f"\nrepair    mqstore repair {tmp_path / 'damaged-torn-tail-4.9.3'}" in shown


def test_info_of_stores_that_were_not_stopped(tmp_path: Path) -> None:
    killed = golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST
    assert "not stopped cleanly: a node redelivers all messages" in run("info", killed).stdout
    store = unpack("broker-killed-4.9.3", tmp_path / "rocket")
    assert "not stopped cleanly (abort exists)" in run("info", store).stdout
    with FileLock(str(store / "lock"), 1, "this test"):
        before = fingerprint(store)
        assert "state     a broker has it open\n" in run("info", store).stdout
        assert fingerprint(store) == before


def test_a_store_whose_queues_are_in_rocksdb(tmp_path: Path) -> None:
    """Its offsets are not those of the log; its messages can be read with --scan log."""
    store = unpack("broker-5.3.3", tmp_path)
    (store / "consumequeue" / "CURRENT").touch()
    (store / "config" / "consumerOffsets").mkdir()
    known = lines(run("info", store, "--json"))[0]
    assert "--scan log reads every message" in known["unreadable"]
    assert known["groups"] is None
    assert "this broker keeps its offsets in RocksDB" in run("offsets", store, code=2).stderr
    for arguments in (["ls"], ["cat"], ["find", "k"], ["offsets", "--at", "-1h"], ["topics"]):
        done = run(arguments[0], store, *arguments[1:], code=2)
        assert "the queues are in RocksDB, which mqstore does not read; --scan log reads" in done.stderr
    assert len(lines(run("cat", store, "--scan", "log", "--columns", "topic"))) > 200


def test_topics(rocket: Path, rabbit: Path, both: Path) -> None:
    rows = {row["topic"]: row for row in lines(run("topics", rocket, "--json"))}
    queues = lines(run("ls", rocket, "--json"))
    for topic in ("orders", "%DLQ%mailer", "SCHEDULE_TOPIC_XXXX"):
        own = [row for row in queues if row["topic"] == topic]
        assert rows[topic]["messages"] == sum(row["messages"] for row in own)
        assert rows[topic]["firstStoreTimestamp"] == min(row["firstStoreTimestamp"] for row in own)
        assert rows[topic]["lastStoreTimestamp"] == max(row["lastStoreTimestamp"] for row in own)
    kinds = {row["kind"]: row for row in lines(run("topics", rocket, "--by", "kind", "--json"))}
    assert {kind: sum(row["kind"] == kind for row in rows.values()) for kind in kinds} == {
        kind: row["topics"] for kind, row in kinds.items()
    }
    assert kinds["normal"]["messages"] == 20_000
    assert kinds["dead letter"]["messages"] == 16
    sizes = [row["bytes"] for row in lines(run("topics", rocket, "--sort", "bytes", "--json"))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(lines(run("topics", both, "--json"))) == len(rows), "a RabbitMQ store beside it has none"
    assert "RabbitMQ has no topics; `mqstore ls` lists its queues" in run("topics", rabbit, code=2).stderr


def test_totals_by_group(groups: Path) -> None:
    totals = run("offsets", groups, "--by", "group").stdout.splitlines()
    assert ["slow", "1", "4", "8", "153", "145"] in [line.split() for line in totals]
    assert len(totals) == 7


def test_offsets_at_a_time(rocket: Path) -> None:
    orders = lines(run("cat", rocket, "--topic", "orders", "--columns", "queueId,queueOffset,storeTimestamp"))
    moment = sorted(row["storeTimestamp"] for row in orders)[len(orders) // 3]
    found = lines(run("offsets", rocket, "--topic", "orders", "--at", moment, "--json"))
    for row in found:
        late = [each["queueOffset"] for each in orders
                if each["queueId"] == row["queueId"] and each["storeTimestamp"] >= moment]  # fmt: skip
        assert (row["offset"], row["messages"]) == (min(late), len(late))
    assert len(found) == 4
    assert run("offsets", rocket, "--at", "soon", code=2).stderr.startswith("mqstore: --at soon: must be ")
    assert "leave out --group" in run("offsets", rocket, "--at", moment, "--group", "billing", code=2).stderr
