"""Values that JSON, Java or a config file can hold and a table cannot: shown as they are, or one line, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_core import open_store
from tests.command_line.calls import lines, run
from tests.golden.archive import unpack
from tests.support.rocketmq_files import flip_bit, records

BODIES = [
    b'{"a": "\\ud800"}', b"NaN", b'{"p": Infinity}', b"1e400", b'"hello"', b"null", b'{"a": [1, true, "x\\u00e4"]}',
    b"hello", b"\xff",
]  # fmt: skip
VALUES = [
    BODIES[0].decode(), "NaN", '{"p": Infinity}', "1e400", '"hello"', "null", {"a": [1, True, "x\u00e4"]},
    "hello", "\ufffd",
]  # fmt: skip


def strict(text: str) -> object:
    def refused(constant: str) -> object:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refused)


def test_a_body_is_shown_as_json_only_if_that_is_valid_json(tmp_path: Path) -> None:
    store, file, again = tmp_path / "store", tmp_path / "file.jsonl", tmp_path / "again"
    with open_store(store, "rocketmq", commitLogFileSize=1 << 14) as opened:
        opened.append({"topic": ["t"] * len(BODIES), "body": BODIES, "queueId": [0] * len(BODIES)})
    shown = run("cat", store, "--body", "json", "--columns", "body").stdout.splitlines()
    assert [strict(line)["body"] for line in shown] == VALUES
    run("cat", store, "--format", "{body.a}")
    run("export", store, file, "--body", "json")
    run("import", file, again, "--engine", "rocketmq", "--body", "json", "--set", "commitLogFileSize=16384")
    assert run("cat", again, "--body", "json", "--columns", "body").stdout.splitlines() == shown


@pytest.mark.parametrize(
    "offsets",
    ['"orders@b":{0:99999999999999999999999}', '"orders@b":{99999999999999:1}', '"orders@\\ud800":{0:1}'],
)
def test_an_offset_that_no_broker_has_is_ignored(tmp_path: Path, offsets: str) -> None:
    store = unpack("broker-4.9.3", tmp_path)
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@a":{0:5},' + offsets + "}}")
    for command in ("info", "offsets", "ls"):
        run(command, store)
    assert {row["group"] for row in lines(run("offsets", store, "--json"))} <= {"a"}


@pytest.mark.parametrize("entry", ['"readQueueNums":99999999999', '"readQueueNums":"x"', '"perm":1e30', '"perm":true'])
def test_a_topic_with_odd_numbers_is_listed(tmp_path: Path, entry: str) -> None:
    store = unpack("broker-4.9.3", tmp_path)
    odd = '{"topicConfigTable":{"odd":{' + entry + '},"\\ud800":{}}}'
    (store / "config" / "topics.json").write_text(odd)
    assert "odd" in {row["topic"] for row in lines(run("topics", store, "--json"))}


def test_a_number_that_is_too_large_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"topic": "t", "body": "a", "queueId": 10**30}))
    done = run("import", file, tmp_path / "new", "--engine", "rocketmq", code=2)
    assert "rows.jsonl: line 1: column 'queueId': " in done.stderr
    assert not (tmp_path / "new").exists()


def test_urls_of_files(tmp_path: Path) -> None:
    store = unpack("damaged-flipped-body-4.9.3", tmp_path)
    run("repair", store, "--to", f"file:{tmp_path}/repaired")
    assert (tmp_path / "repaired" / "commitlog").is_dir()
    assert not Path("file:").exists()
    done = run("repair", store, "--to", "s3://bucket/store", code=2)
    assert done.stderr.startswith("mqstore: s3://bucket/store: a repair makes its copy in a directory; name one, then ")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"topic": "t", "body": "a"}\n')
    run("import", file, f"file:{tmp_path}/new", "--engine", "rocketmq")
    run("import", file, f"file://{tmp_path}/new")
    assert len(lines(run("cat", tmp_path / "new"))) == 2


def test_a_group_that_neither_of_two_stores_has(groups: Path) -> None:
    done = run("offsets", groups, "--diff", groups, "--group", "nosuch", code=2)
    assert "--group nosuch: neither store has it; the groups are " in done.stderr


def test_switches_of_offsets_that_exclude_each_other(groups: Path) -> None:
    for switch, name in (("--group", "slow"), ("--diff", groups)):
        done = run("offsets", groups, "--at", "2026-11-20", switch, name, code=2)
        assert done.stderr.endswith(f"leave out {switch}\n")


def test_numbers_beyond_any_store(rocket: Path) -> None:
    many = "9" * 25
    assert len(lines(run("cat", rocket, "--topic", "orders", "--columns", "queueId", "-n", many))) == 6005
    assert len(lines(run("cat", rocket, "--topic", "orders", "--columns", "queueId", "--last", many))) == 6005
    for number in ("nan", "inf"):
        done = run("cat", rocket, "--follow", "--interval", number, code=2)
        assert f"{number} is not a finite number" in done.stderr


def test_the_newest_of_a_queue_whose_last_messages_are_damaged(tmp_path: Path) -> None:
    """Two of a quiet queue are damaged, in a file of the log that no recovery reads."""
    store, shown = tmp_path / "store", ("--mode", "dropmalformed", "--columns", "queueId,queueOffset,body")
    bodies = [b"quiet %d" % number for number in range(9)] + [bytes(8000)] * 12
    with open_store(store, "rocketmq", commitLogFileSize=1 << 14) as opened:
        opened.append({"topic": ["t"] * 21, "queueId": [0, 1, 0, 1, 0, 1, 0, 1, 0, *[2] * 12], "body": bodies})
    for place in list(records(store))[6:9:2]:
        flip_bit(place.path, place.body_position, 3)
    assert len(lines(run("cat", store, *shown))) == 19
    for queues, left in (("0", [(0, 2), (0, 1), (0, 0)]), ("0,1", [(1, 3), (1, 2), (0, 2), (1, 1), (0, 1), (1, 0)])):
        chosen = (*shown, "--topic", "t", "--queue", queues)
        for count in range(1, len(left) + 1):
            found = lines(run("cat", store, *chosen, "--newest-first", "-n", count))
            assert [(row["queueId"], row["queueOffset"]) for row in found] == left[:count], count
            assert lines(run("cat", store, *chosen, "--last", count)) == found[::-1]
