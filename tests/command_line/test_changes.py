"""`import`, `offsets reset`, `offsets --diff` and `cat --follow`: commands that write or wait for writers."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from command_line import incoming
from storage_core import open_store
from storage_core.files.lock import FileLock
from storage_core.formats.rocketmq.config_json import decode_config, encode_offsets
from tests.command_line.calls import lines, process, run, without_roots_rights
from tests.golden.archive import fingerprint, unpack
from tests.rabbitmq import stream_golden as golden
from tests.rabbitmq.played_stream import Played

SMALL = ["--set", "commitLogFileSize=4000000", "--set", "indexSlots=50", "--set", "indexEntries=9000"]
KEPT = "topic,queueId,queueOffset,key,tags,body,properties,bornTimestamp,bornHost,flag,reconsumeTimes"
ORDER_FREE = "queue,body,exchange,routingKeys,headers,messageId,priority,timestamp,rawProperties"


@pytest.mark.parametrize(("name", "switches"), [("o.parquet", []), ("o.jsonl", []), ("o.jsonl", ["--body", "base64"])])
def test_what_export_wrote_is_imported(rocket: Path, tmp_path: Path, name: str, switches: list[str]) -> None:
    file, store = tmp_path / name, tmp_path / "new"
    run("export", rocket, file, "--topic", "orders", *switches)
    done = run("import", file, store, "--engine", "rocketmq", *switches, *SMALL)
    assert done.stderr == f"mqstore: 6,005 messages written to {store}\n"
    selected = ["--topic", "orders", "--columns", KEPT, "--body", "hex"]
    assert run("cat", store, *selected).stdout == run("cat", rocket, *selected).stdout


@pytest.mark.parametrize("name", ["q.parquet", "q.jsonl"])
def test_a_rabbitmq_store_is_imported(rabbit: Path, tmp_path: Path, name: str) -> None:
    file, store = tmp_path / name, tmp_path / "new"
    run("export", rabbit, file, "--body", "base64")
    run("import", file, store, "--engine", "rabbitmq", "--body", "base64")
    selected = ["--columns", ORDER_FREE, "--body", "hex"]
    assert run("cat", store, *selected).stdout == run("cat", rabbit, *selected).stdout


@pytest.mark.parametrize("folder", ["", "config", "consumequeue", "index"])
def test_a_folder_that_may_not_be_changed_is_found_before_the_commit(tmp_path: Path, folder: str) -> None:
    rows, store = tmp_path / "rows.jsonl", tmp_path / "store"
    rows.write_text('{"topic": "first", "body": "a", "key": "k"}\n')
    run("import", rows, store, "--engine", "rocketmq", "--set", "commitLogFileSize=4096", *SMALL[2:])
    more = "".join(json.dumps({"topic": "second", "body": "b", "key": f"k{row}"}) + "\n" for row in range(9000))
    rows.write_text(more)
    _refused_and_later_done(rows, store, store / folder)
    assert len(lines(run("cat", store, "--columns", "topic"))) == 9001


@pytest.mark.parametrize("folder", ["", "msg_store_persistent", "queues"])
def test_a_folder_of_rabbitmq_that_may_not_be_changed(rabbit: Path, tmp_path: Path, folder: str) -> None:
    rows, store = tmp_path / "rows.jsonl", tmp_path / "store"
    shutil.copytree(rabbit, store)
    count = len(lines(run("cat", store, "--columns", "queue")))
    rows.write_text('{"queue": "added", "body": "%s"}\n' % ("a" * 5000))
    (store / ".mqstore").mkdir()
    _refused_and_later_done(rows, store, store / folder)
    assert len(lines(run("cat", store, "--columns", "queue"))) == count + 1


def _refused_and_later_done(rows: Path, store: Path, folder: Path) -> None:
    before = _files(store)
    folder.chmod(0o555)
    try:
        done = process("import", rows, store, preexec_fn=without_roots_rights)
        after = _files(store)
    finally:
        folder.chmod(0o755)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{folder}: Permission denied" in done.stderr
    assert "committed" not in done.stderr
    assert after == before
    run("import", rows, store)


def _files(store: Path) -> dict[str, tuple[int, str]]:
    """Length and sha256 of each file of a store, without mqstore's own."""
    return {name: seen[1:] for name, seen in fingerprint(store).items() if not name.startswith(".mqstore")}


def test_a_row_that_may_not_be_written_is_named(damaged: Path, tmp_path: Path) -> None:
    """A producer other than RocketMQ's client may have written messages that a write refuses."""
    file, store = tmp_path / "all.parquet", tmp_path / "rescued"
    run("export", damaged, file, "--scan", "log", "--mode", "dropmalformed")
    count = len(lines(run("cat", damaged, "--scan", "log", "--mode", "dropmalformed", "--columns", "topic")))
    assert count > 500
    done = run("import", file, store, "--engine", "rocketmq", *SMALL, "--dry-run", code=2)
    assert "all.parquet: row " in done.stderr
    assert not store.exists()


def wrong_files() -> list[tuple[str, str]]:
    return [
        ('{"a": 1', "line 1: not JSON: "),
        ("[1]", "line 1: not a JSON object, but [1]"),
        ('{"topic": "a b", "body": "x"}', "row 1: column 'topic' is 'a b': "),
        ('{"topic": "a", "body": "x"}\n\n{"topic": "a", "body": "x", "z": 1}', "line 3: the first line has no 'z'"),
        ('{"topic": "a", "body": "x", "bornTimestamp": "soon"}', "line 1: column 'bornTimestamp': "),
        ('{"topic": "a", "body": "x", "properties": 3}', "line 1: column 'properties': "),
        (
            '{"topic": "a", "body": "x", "keys": ["k"]}\n\n{"topic": "a"}\n{"keys": 3}\n{"keys": 4}',
            "line 4: column 'keys'",
        ),
        ('{"topic": "a", "body": "x", "queueId": 1}\n\n{"queueId": "1"}\n{"body": "x"}', "line 3: column 'queueId'"),
        ('{"topic": "a", "bodi": "x"}', "column 'bodi': there is no such column"),
    ]


def test_an_import_that_fails_changes_nothing(rocket: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(rocket, store)
    before = fingerprint(store / "commitlog"), fingerprint(store / "consumequeue")
    for text, reason in wrong_files():
        (tmp_path / "x.jsonl").write_text(text)
        done = run("import", tmp_path / "x.jsonl", store, code=2)
        assert done.stderr.count("\n") == 1
        assert reason in done.stderr
    (tmp_path / "x.parquet").write_bytes(b"PAR1 none")
    assert "x.parquet: not a Parquet file" in run("import", tmp_path / "x.parquet", store, code=2).stderr
    assert "there is no such file" in run("import", tmp_path / "y.jsonl", store, code=2).stderr
    assert "its name must end in .parquet, .jsonl" in run("import", tmp_path / "y.txt", store, code=2).stderr
    assert "add --engine rocketmq" in run("import", tmp_path / "x.jsonl", tmp_path / "none", code=2).stderr
    assert "preserve=true" in run("import", tmp_path / "x.jsonl", store, "--set", "preserve", code=2).stderr
    done = run("import", tmp_path / "x.jsonl", store, "--set", "foo=bar", code=2)
    assert "indexEntries, commitLogPath, lockTimeout" in done.stderr
    (tmp_path / "x.jsonl").write_text('{"topic": "a", "body": "x"}\n' * 3)
    done = run("import", tmp_path / "x.jsonl", store, "--dry-run")
    assert done.stderr == f"mqstore: 3 messages can be written to {store}\n"
    assert (fingerprint(store / "commitlog"), fingerprint(store / "consumequeue")) == before


def test_json_lines_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "ROWS_AT_ONCE", 10)
    rows = [{"topic": "t", "queueId": 0, "body": {"number": n}} for n in range(25)]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run("import", tmp_path / "x.jsonl", tmp_path / "s", "--engine", "rocketmq", "--body", "json", *SMALL)
    found = lines(run("cat", tmp_path / "s", "--columns", "topic,queueId,body", "--body", "json"))
    assert found == rows


# -- offsets


def committed(store: Path, group: str) -> dict[tuple[str, int], int]:
    rows = lines(run("offsets", store, "--group", group, "--json"))
    return {(row["topic"], row["queueId"]): row["committed"] for row in rows}


@pytest.mark.parametrize("name", ["broker-4.9.3", "broker-5.3.3"])
def test_the_offsets_file_is_written_as_a_broker_writes_it(tmp_path: Path, name: str) -> None:
    data = (unpack(name, tmp_path) / "config" / "consumerOffset.json").read_bytes()
    assert encode_offsets(decode_config(data)) == data
    assert encode_offsets({"offsetTable": {}}) == b'{\n\t"offsetTable":{}\n}'


def test_a_reset_shows_first_and_writes_with_apply(groups: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(groups, store)
    before, others = fingerprint(store), committed(store, "everything")
    done = run("offsets", "reset", store, "--group", "slow", "--to", "latest")
    assert "4 offsets of slow would change; add --apply to do it" in done.stderr
    assert fingerprint(store) == before
    old = (store / "config" / "consumerOffset.json").read_bytes()
    rows = lines(run("offsets", "reset", store, "--group", "slow", "--to", "latest", "--apply", "--json"))
    assert {row["topic"] for row in rows} == {"greetings"}
    assert all(row["offset"] == row["maxOffset"] for row in rows)
    assert committed(store, "slow") == {(row["topic"], row["queueId"]): row["offset"] for row in rows}
    assert committed(store, "everything") == others
    assert (store / "config" / "consumerOffset.json.bak").read_bytes() == old
    new = (store / "config" / "consumerOffset.json").read_bytes()
    assert [line for line in new.splitlines() if b"slow" not in line] == [
        line for line in old.splitlines() if b"slow" not in line
    ]
    after = fingerprint(store)
    changed = {path for path in after if after[path] != before.get(path) and not path.startswith(".")}
    assert changed == {"config", "config/consumerOffset.json", "config/consumerOffset.json.bak"}
    # Back to the earliest offsets, then one queue to an offset, then all queues to a time.
    run("offsets", "reset", store, "--group", "slow", "--to", "earliest", "--apply")
    assert set(committed(store, "slow").values()) == {0}
    run("offsets", "reset", store, "--group", "slow", "--topic", "greetings", "--queue", 2, "--to", 9, "--apply")
    assert committed(store, "slow")["greetings", 2] == 9
    moment = lines(run("cat", store, "--topic", "greetings", "--queue", 1, "--start", 20, "-n", 1))[0]["storeTimestamp"]
    run("offsets", "reset", store, "--group", "slow", "--topic", "greetings", "--to", moment, "--apply")
    wanted = {(row["topic"], row["queueId"]): row["offset"]
              for row in lines(run("offsets", store, "--topic", "greetings", "--at", moment, "--json"))}  # fmt: skip
    assert committed(store, "slow") == wanted
    run("offsets", "reset", store, "--group", "fresh", "--new-group", "--topic", "ledger", "--to", "latest", "--apply")
    assert committed(store, "fresh") == {("ledger", 0): 14, ("ledger", 1): 9}


def test_a_reset_is_refused(groups: Path, tmp_path: Path, rabbit: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(groups, store)
    for arguments, reason in (
        (["--group", "slwo", "--to", "latest"], "did you mean slow?"),
        (["--group", "slow", "--to", "soon"], "--to soon: must be earliest, latest, an offset, or a time"),
        (["--group", "slow", "--to", "999"], "queue 0 of greetings has the offsets 0 to 37"),
        (["--group", "slow", "--to", "latest", "--topic", "ordrs"], "--topic ordrs: there is no such topic"),
    ):
        assert reason in run("offsets", "reset", store, *arguments, code=2).stderr
    run("offsets", "reset", rabbit, "--group", "a", "--to", "latest", code=2)
    reset = ["offsets", "reset", store, "--group", "slow", "--to", "latest", "--apply"]
    before = fingerprint(store / "config")
    with FileLock(str(store / "lock"), 1, "this test"):
        done = run(*reset, code=2)
    assert "is locked by a running broker" in done.stderr
    (store / "config" / "consumerOffsets").mkdir()
    assert "keeps its offsets in RocksDB" in run(*reset, code=2).stderr
    (store / "config" / "consumerOffsets").rmdir()
    assert {**fingerprint(store / "config"), ".": 0} == {**before, ".": 0}


def test_the_difference_of_two_stores(groups: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(groups, store)
    assert run("offsets", groups, "--diff", store).stderr == "mqstore: no difference\n"
    run("offsets", "reset", store, "--group", "slow", "--topic", "greetings", "--queue", 1, "--to", 9, "--apply")
    assert lines(run("offsets", groups, "--diff", store, "--json")) == [
        {"group": "slow", "topic": "greetings", "queueId": 1, "committed": 7, "other": 9, "difference": 2}
    ]
    assert lines(run("offsets", groups, "--diff", store, "--group", "picky", "--json")) == []


# -- cat --follow


def _append(store: Path, topic: str, count: int) -> None:
    with open_store(str(store), "rocketmq") as opened:
        bodies = [f"{topic} {n}" for n in range(count)]
        rows = pa.table({"topic": [topic] * count, "body": bodies, "queueId": [0] * count})
        opened.append(rows, commitLogFileSize=100_000, indexSlots=50, indexEntries=9000)


def test_following_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    _append(store, "a", 3)
    (store / "abort").touch()
    done: list[list[dict[str, Any]]] = []
    thread = threading.Thread(
        target=lambda: done.append(
            lines(run("cat", store, "--follow", "--interval", 0.02, "-n", 9, "--columns", "topic,queueOffset"))
        )
    )
    thread.start()
    time.sleep(0.2)
    _append(store, "a", 2)
    _append(store, "b", 4)
    thread.join(60)
    assert not thread.is_alive()
    assert [(row["topic"], row["queueOffset"]) for row in done[0]] == [
        *(("a", n) for n in range(5)), *(("b", n) for n in range(4)),
    ]  # fmt: skip


def test_following_a_queue_that_is_consumed(tmp_path: Path) -> None:
    store = tmp_path / "vhost"
    with open_store(str(store), "rabbitmq") as opened, opened.queue("jobs") as queue:
        queue.publish_many(["0", "1", "2"])
        queue.sync()
        done: list[list[dict[str, Any]]] = []
        switches = ("--follow", "--interval", 0.02, "-n", 8, "--columns", "queue,body")
        thread = threading.Thread(target=lambda: done.append(lines(run("cat", store, "--queue", "jobs", *switches))))
        thread.start()
        time.sleep(1.5)  # the first messages found are printed only once they are known to be complete
        queue.ack(queue.fetch_many(3).sequence_ids.tolist())
        queue.publish_many(["3", "4"])
        queue.sync()
        time.sleep(0.2)
        queue.publish_many(["5", "6", "7"])
        queue.sync()
        thread.join(60)
        assert not thread.is_alive()
    assert [row["body"] for row in done[0]] == [str(number) for number in range(8)]


def test_following_a_stream(tmp_path: Path) -> None:
    """Prints existing messages, then new ones, in stream order, up to the given number."""
    played = Played("s10_torn_segment", tmp_path)
    wanted = [row["streamOffset"] for row in golden.rows(played.source)]
    played.grow(2)
    done: list[list[dict[str, Any]]] = []
    switches = ("--follow", "--interval", 0.02, "-n", len(wanted), "--columns", "streamOffset")
    thread = threading.Thread(target=lambda: done.append(lines(run("cat", played.target, *switches))))
    thread.start()
    while played.done < len(played.steps):
        time.sleep(0.05)
        played.grow(1)
    thread.join(60)
    assert not thread.is_alive()
    assert [row["streamOffset"] for row in done[0]] == wanted


def test_what_cannot_be_followed(rocket: Path, rabbit: Path) -> None:
    for path, switches, reason in (
        (rabbit, ["--stop", "10"], "leave out --stop"),
        (rocket, ["--scan", "log"], "leave out --scan log"),
        (rocket, ["--stop", "10"], "leave out --stop"),
        (rocket, ["--to", "2026-01-01"], "leave out --stop"),
    ):
        done = run("cat", path, "--follow", *switches, code=2)
        assert done.stderr.startswith("mqstore: --follow")
        assert reason in done.stderr


def test_a_log_in_another_folder(tmp_path: Path) -> None:
    """The option that the error recommends exists."""
    store, log, file = tmp_path / "store", tmp_path / "disk" / "commitlog", tmp_path / "one.jsonl"
    file.write_text('{"topic": "t", "body": "hello"}\n')
    where = ("--commit-log-path", log)
    run("import", file, store, "--engine", "rocketmq", *where)
    assert "name the log with --commit-log-path" in run("import", file, store, code=2).stderr
    run("import", file, store, *where)
    assert run("cat", store, *where).stdout.count("hello") == 2
    run("verify", store, *where)
