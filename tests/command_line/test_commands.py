"""The output of `ls`, `cat`, `find`, `offsets`, `export` and `definitions` on real stores."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from command_line.main import COMMANDS
from command_line.output.rows import json_rows
from storage_core import open_store
from tests.command_line.calls import ROOT, lines, run, shell, words
from tests.golden.archive import fingerprint, truth, unpack
from tests.rabbitmq import golden


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("mqstore")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mqstore, version ")


@pytest.mark.parametrize(("arguments", "absent"), [(["cat", "x"], ["pyspark"]), (["--help"], ["numpy", "pyarrow"])])
def test_what_a_call_does_not_load(arguments: list[str], absent: list[str]) -> None:
    script = (
        f"import sys\nfrom command_line.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
    )
    script += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stderr.split()
    assert "command_line.main" in loaded
    assert not set(absent) & set(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str) -> None:
    text = run(*name.split(), "--help").stdout
    assert text.startswith("Usage: ")
    assert f"mqstore {name} " in text.split("Examples:")[1]


def test_the_help_fits_a_narrow_terminal() -> None:
    text = run("--help").stdout
    assert "\n  mqstore cat /backup/broker-a/store --topic orders --last 5\n" in text
    assert "\\b" not in text
    named = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  +\S", text.split("Commands:")[1], re.MULTILINE)
    assert named == list(COMMANDS), "one line each"
    assert max(map(len, text.splitlines())) <= 80


def test_completion_knows_the_commands() -> None:
    environment = {**os.environ, "_MQSTORE_COMPLETE": "bash_complete", "COMP_WORDS": "mqstore of", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("mqstore")
    done = subprocess.run([command], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "plain,offsets"


def test_ls_is_the_view_of_queues(rocket: Path, rabbit: Path) -> None:
    for path in (rocket, rabbit):
        before = fingerprint(path)
        with open_store(str(path)) as store:
            wanted = [row for batch in store.view("queues") for row in json_rows(batch)]
        assert [{**row, "store": path.name} for row in wanted] == lines(run("ls", path, "--json"))
        head, *shown, total = words(run("ls", path))
        assert head[0] in ("topic", "queue")
        assert len(shown) == len(wanted)
        assert total[:2] == [str(len(wanted)), "queues"]
        assert f"{sum(row['messages'] for row in wanted):,}" in total
        assert fingerprint(path) == before


def test_ls_sorts_and_selects(rocket: Path) -> None:
    sizes = [row["bytes"] for row in lines(run("ls", rocket, "--sort", "bytes", "--json"))]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["topic"] for row in lines(run("ls", rocket, "--topic", "orders,payments", "--json"))} == {
        "orders",
        "payments",
    }


def test_stores_of_both_engines(both: Path) -> None:
    rows = lines(run("ls", both, "--json"))
    assert {row["store"] for row in rows} == {"rocket", "rabbit"}
    heads = [line for line in run("ls", both).stdout.splitlines() if " messages " in line]
    assert [head.split()[0] for head in heads] == ["topic", "queue"]
    assert {row["store"] for row in lines(run("ls", both, "--json", "--engine", "rocketmq"))} == {"rocket"}
    mixed = lines(run("cat", both, "--columns", "store"))
    assert {row["store"] for row in mixed} == {"rocket", "rabbit"}
    assert "have different columns; add --engine" in run("export", both, both / "x.parquet", code=2).stderr


def test_several_stores_are_told_apart(node: Path) -> None:
    folders = {path.name for path in (node / "msg_stores" / "vhosts").iterdir()}
    # The node's quorum queues and its streams are separate stores, in addition to those of the virtual hosts.
    assert {row["store"] for row in lines(run("ls", node, "--json"))} == folders | {"kinds@localhost", "stream"}
    assert "vhost" in words(run("ls", node))[0]
    assert {row["vhost"] for row in lines(run("ls", node, "--vhost", "other", "--json"))} == {"other"}
    every = lines(run("cat", node, "--columns", "queue,store"))
    assert len(every) == 9
    assert {row["queue"] for row in lines(run("cat", node, "--vhost", "/", "--queue", "prio"))} == {"prio"}
    assert "did you mean other?" in run("cat", node, "--vhost", "othr", code=2).stderr


def test_a_store_that_fails_while_it_is_read_does_not_hide_the_others(tmp_path: Path, rocket: Path) -> None:
    (tmp_path / "good").symlink_to(rocket)
    bad = unpack("damaged-flipped-body-4.9.3", tmp_path / "first")
    done = run("cat", tmp_path, "--columns", "store,body", code=1)
    assert done.stderr.count(" is left out: ") == 1
    assert f"{bad} is left out: {bad}/commitlog/" in done.stderr
    assert sum(row["store"] == "good" for row in lines(done)) == 20_048
    assert run("export", tmp_path, tmp_path / "all.jsonl", code=1).stderr.count("\n") == 1
    assert not (tmp_path / "all.jsonl").exists()


def test_one_bad_store_does_not_hide_the_others(tmp_path: Path, rocket: Path) -> None:
    (tmp_path / "good").symlink_to(rocket)
    (tmp_path / "nolog" / "consumequeue" / "t" / "0").mkdir(parents=True)
    for arguments in (["ls"], ["cat", "-n", "3"], ["find", "no such key"], ["offsets"]):
        done = run(arguments[0], tmp_path, *arguments[1:], code=1)
        assert done.stderr.count("\n") == 1
        assert "nolog is left out: " in done.stderr
        assert "there is no commit log here" in done.stderr
        assert "--commit-log-path" in done.stderr
    assert {row["store"] for row in lines(run("ls", tmp_path, "--json", code=1))} == {"good"}


def test_cat_gives_native_columns(rocket: Path) -> None:
    wanted = truth("shop-4.9.3")
    found = lines(run("cat", rocket, "--topic", "orders", "--queue", 1, "--start", 10, "--stop", 13))
    assert [(row["topic"], row["queueId"], row["queueOffset"]) for row in found] == [
        ("orders", 1, n) for n in (10, 11, 12)
    ]
    first = found[0]
    assert first["storeTimestamp"].endswith("Z")
    assert len(first["storeTimestamp"]) == len("2026-11-21T12:00:00.000Z")
    assert isinstance(first["properties"], dict)
    hexed = lines(
        run("cat", rocket, "--topic", "orders", "--queue", 1, "--start", 10, "-n", 1, "--body", "hex", "--json")
    )
    assert bytes.fromhex(hexed[0]["body"]).decode() == first["body"]
    assert len(lines(run("cat", rocket, "-n", 7, "--columns", "topic,body"))) == 7
    assert len(lines(run("cat", rocket, "--columns", "topic"))) == len(wanted)


def test_cat_takes_what_spark_takes(rocket: Path) -> None:
    def offsets(*arguments: object, code: int = 0) -> list[tuple[str, int, int]]:
        found = lines(run("cat", rocket, "--columns", "topic,queueId,queueOffset", *arguments, code=code))
        return [(row["topic"], row["queueId"], row["queueOffset"]) for row in found]

    assert {topic for topic, _, _ in offsets("--topic", "orders,payments")} == {"orders", "payments"}
    assert offsets("--topic", "orders", "--topic", "payments") == offsets("--topic", "orders,payments")
    assert len(offsets("--topic", "orders", "--start", "last:5")) == 20
    assert offsets("--topic", "orders", "--start", "-5") == offsets("--topic", "orders", "--start", "last:5")
    assert len(offsets("--topic", "orders", "--start", '{"orders": {"0": 1490, "1": 1500}}', "--queue", "0,1")) == 14
    assert offsets("--from", "-1h", code=1) == []
    assert offsets("--topic", "orders", "-n", 3, "--mode", "dropmalformed") == offsets("--topic", "orders", "-n", 3)
    # A bare number applies to every queue; a shorter queue has no messages from there on.
    assert {topic for topic, _, _ in offsets("--start", 2000)} == {"shipments"}
    assert min(offset for _, _, offset in offsets("--start", 2000)) == 2000
    by_key = offsets("--topic", "orders", "--scan", "log")
    assert len(by_key) == 6005


def test_cat_by_time_key_and_tag(rocket: Path) -> None:
    everything = lines(run("cat", rocket, "--topic", "orders", "--columns", "storeTimestamp,keys,tags"))
    moment = sorted(row["storeTimestamp"] for row in everything)[len(everything) // 2]
    late = lines(run("cat", rocket, "--topic", "orders", "--from", moment, "--columns", "storeTimestamp"))
    early = lines(run("cat", rocket, "--topic", "orders", "--to", moment, "--columns", "storeTimestamp"))
    assert len(late) + len(early) == len(everything)
    assert all(row["storeTimestamp"] >= moment for row in late)
    key, tag = everything[5]["keys"][0], everything[5]["tags"]
    keyed = lines(run("cat", rocket, "--topic", "orders", "--key", key))
    assert len(keyed) == sum(key in row["keys"] for row in everything)
    tagged = lines(run("cat", rocket, "--topic", "orders", "--tag", tag, "--columns", "tags"))
    assert len(tagged) == sum(row["tags"] == tag for row in everything)


def test_cat_gives_the_newest(rocket: Path, groups: Path, tmp_path: Path, rabbit: Path) -> None:
    (tmp_path / "a").symlink_to(rocket)
    (tmp_path / "b").symlink_to(groups)
    columns = "store,topic,queueId,queueOffset,storeTimestamp,physicalOffset,tags"
    for path, selected in ((rocket, []), (rocket, ["--topic", "orders", "--tag", "OrderCreated"]), (tmp_path, [])):

        def age(row: dict[str, Any]) -> tuple[str, int]:
            return row["storeTimestamp"], row["physicalOffset"]

        wanted = sorted(lines(run("cat", path, "--columns", columns, *selected)), key=age)[-30:]
        assert lines(run("cat", path, "--columns", columns, *selected, "--last", 30)) == wanted
        newest = lines(run("cat", path, "--columns", columns, *selected, "--newest-first", "-n", 30))
        assert newest == wanted[::-1]
    queue = lines(run("cat", rabbit, "--queue", "b.large", "--columns", "sequenceId"))
    assert lines(run("cat", rabbit, "--queue", "b.large", "--columns", "sequenceId", "--last", 3)) == queue[-3:]
    assert "needs one --queue" in run("cat", rabbit, "--last", 3, code=2).stderr
    assert "add -n" in run("cat", rocket, "--newest-first", code=2).stderr


def test_cat_by_a_template(rocket: Path) -> None:
    first = lines(run("cat", rocket, "--topic", "orders", "-n", 1, "--body", "json"))[0]
    filled = run(
        "cat", rocket, "--topic", "orders", "-n", 1, "--format", r"{topic}/{queueId}\t{body.price} {{}}"
    ).stdout
    assert filled == f"orders/{first['queueId']}\t{first['body']['price']} {{}}\n"
    many = run("cat", rocket, "--topic", "orders", "-n", 2, "--format", r"{queueOffset} {properties.UNIQ_KEY}\n").stdout
    assert len(many.splitlines()) == 2
    for wrong in ("{topic", "cvs", "{}", "{{topic}}"):
        assert run("cat", rocket, "--format", wrong, code=2).stderr.startswith(f"mqstore: --format {wrong}: ")
    assert "did you mean topic?" in run("cat", rocket, "--format", "{topik}", code=2).stderr


def test_cat_as_csv(rocket: Path) -> None:
    text = run("cat", rocket, "--topic", "orders", "-n", 4, "--format", "csv").stdout
    found = list(csv.DictReader(io.StringIO(text)))
    wanted = lines(run("cat", rocket, "--topic", "orders", "-n", 4))
    assert [row["body"] for row in found] == [row["body"] for row in wanted]
    assert [json.loads(row["properties"]) for row in found] == [row["properties"] for row in wanted]


def test_cat_of_a_rabbitmq_queue(rabbit: Path) -> None:
    found = lines(run("cat", rabbit, "--queue", "e.prio", "--body", "base64"))
    rows = golden.by_queue(golden.table(rabbit, columns=("queue", "sequenceId")))["e.prio"]
    assert [row["sequenceId"] for row in found] == [row["sequenceId"] for row in rows]
    assert {"headers", "routingKeys", "rawProperties", "redelivered"} <= set(found[0])


def test_find(rocket: Path, rabbit: Path) -> None:
    row = lines(run("cat", rocket, "--topic", "payments", "-n", 1))[0]
    by_id = lines(run("find", rocket, row["msgId"]))
    assert row in by_id
    by_key = lines(run("find", rocket, row["keys"][0]))
    assert row in by_key
    assert lines(run("find", rocket, row["keys"][0], "--topic", "orders")) == [
        each for each in by_key if each["topic"] == "orders"
    ]
    assert lines(run("find", rocket, row["keys"][0], "-n", 1, "--columns", "topic,key")) == [
        {name: by_key[0][name] for name in ("topic", "key")}
    ]
    for path in (rocket, rabbit):
        assert lines(run("find", path, "no such thing", code=1)) == []
    row = lines(run("cat", rabbit, "-n", 1))[0]
    assert row in lines(run("find", rabbit, row["guid"]))


def test_a_damaged_message_is_not_the_newest(damaged: Path) -> None:
    """It shows no time, wherever in the log it is."""
    read = ["--scan", "log", "--columns", "physicalOffset,corruption", "--mode", "permissive"]
    newest = lines(run("cat", damaged, *read, "--last", 2))
    assert [row["corruption"] for row in newest] == [None, None]
    every = lines(run("cat", damaged, *read, "--last", 1000))
    assert newest == every[-2:]
    assert [number for number, row in enumerate(every) if row["corruption"]] == [0]


def test_what_recovery_leaves_out_is_reported(damaged: Path) -> None:
    for arguments, code in ((["ls"], 0), (["cat"], 0), (["find", "UPPER_155"], 1), (["offsets"], 1)):
        done = run(arguments[0], damaged, *arguments[1:], code=code)
        assert "up to 130136 bytes of the commit log" in done.stderr
        assert "--scan log reads the intact records among them" in done.stderr
    assert len(lines(run("find", damaged, "UPPER_155", "--scan", "log", "--mode", "dropmalformed"))) == 2


def test_offsets(groups: Path) -> None:
    found = lines(run("offsets", groups, "--json"))
    assert found
    assert all(row["lag"] == row["maxOffset"] - row["committed"] for row in found)
    head, *rows, total = words(run("offsets", groups))
    assert head == ["group", "topic", "queues", "committed", "end", "lag"]
    assert ["slow", "greetings", "4", "8", "153", "145"] in rows
    assert total == ["5", "groups", "7", "topics", "145"]
    own = words(run("offsets", groups, "--group", "slow", "--queues"))
    assert [row[:3] for row in own[1:-1]] == [["slow", "greetings", str(queue)] for queue in range(4)]
    assert "did you mean slow?" in run("offsets", groups, "--group", "slwo", code=2).stderr


def test_export(rocket: Path, rabbit: Path, tmp_path: Path) -> None:
    done = run("export", rabbit, tmp_path / "all.parquet")
    assert "182 messages written to" in done.stderr
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table["body"].to_pylist() == golden.table(rabbit)["body"].to_pylist()
    run("export", rocket, tmp_path / "some.jsonl", "--topic", "orders")
    written = (tmp_path / "some.jsonl").read_text()
    assert written == run("cat", rocket, "--topic", "orders").stdout
    assert run("export", rocket, "-", "--topic", "orders").stdout == written
    run("export", rocket, tmp_path / "few.csv", "--topic", "orders", "-n", 3)
    assert (tmp_path / "few.csv").read_text() == run(
        "cat", rocket, "--topic", "orders", "-n", 3, "--format", "csv"
    ).stdout
    before = (tmp_path / "some.jsonl").read_bytes()
    assert "already exists" in run("export", rocket, tmp_path / "some.jsonl", code=2).stderr
    assert (tmp_path / "some.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "few.csv", "some.jsonl"]


def test_definitions(node: Path, rocket: Path, tmp_path: Path) -> None:
    done = run("definitions", node)
    found = json.loads(done.stdout)
    assert [vhost["name"] for vhost in found["vhosts"]] == ["/", "other"]
    assert {(each["vhost"], each["name"]): each["arguments"] for each in found["queues"]}[("/", "prio")] == {
        "x-max-priority": 3,
        "x-message-ttl": 60000,
    }
    assert not {"quorum", "stream"} & {each["name"] for each in found["queues"]}, "their messages are not here"
    assert f"msg_stores/vhosts/{golden.DEFAULT_VHOST}" in done.stderr
    assert "rabbitmqctl import_definitions FILE" in done.stderr
    assert "exchanges, bindings, users" in done.stderr
    assert "chown" in done.stderr
    assert json.loads(run("definitions", node, "--json").stdout) == found
    done = run("definitions", node, "-o", tmp_path / "d.json")
    assert "what was printed" not in done.stderr
    assert json.loads((tmp_path / "d.json").read_text()) == found
    text = run("definitions", rocket, code=2).stderr
    assert text == f"mqstore: {rocket}: a rocketmq store needs no definitions; start a broker on it\n"


def test_a_pipe_that_closes_ends_quietly(rocket: Path) -> None:
    for command in ("cat", "ls"):
        done = shell(f"mqstore {command} {rocket} | head -1")
        assert len(done.stdout.splitlines()) == 1
        assert done.stderr == ""


def test_verify_is_the_view_of_damage(damaged: Path, rocket: Path, rabbit: Path) -> None:
    before = fingerprint(damaged)
    with open_store(str(damaged)) as store:
        wanted = [row for batch in store.view("damage") for row in json_rows(batch)]
    found = lines(run("verify", damaged, "--json", code=1))
    assert [{**row, "store": damaged.name} for row in wanted] == found
    printed = run("verify", damaged, code=1).stdout.splitlines()
    assert len(printed) == len(wanted)
    assert printed[0] == (
        "commitlog/00000000000000016384 at 936: wrong checksum: the body of the record at 17320 does not fit its "
        "BODYCRC; a broker ends the log here and cuts all that follows"
    )
    for intact in (rocket, rabbit):
        assert run("verify", intact).output == ""
    assert fingerprint(damaged) == before


def test_verify_of_several_stores_says_which(tmp_path: Path, rocket: Path, damaged: Path) -> None:
    (tmp_path / "good").symlink_to(rocket)
    (tmp_path / "bad").symlink_to(damaged)
    printed = run("verify", tmp_path, code=1).stdout.splitlines()
    assert printed
    assert all(line.startswith("bad/commitlog/") for line in printed)


def test_repair_mends_a_copy(tmp_path: Path, damaged: Path) -> None:
    before = fingerprint(damaged)
    planned = run("repair", damaged, "--dry-run").stdout.splitlines()
    assert planned[0].endswith("wrong checksum: keep the message as it is, with the checksum of its present body")
    assert len(planned) == len(lines(run("verify", damaged, "--json", code=1)))
    target = tmp_path / "mended"
    assert lines(run("repair", damaged, "--dry-run", "--json")) == [{"planned": line} for line in planned]
    (done,) = run("repair", damaged, "--to", target).stdout.splitlines()
    assert done.startswith("commitlog/00000000000000016384 at 936: wrong checksum: kept as it is")
    assert lines(run("repair", damaged, "--to", tmp_path / "again", "--json")) == [{"done": done}]
    assert run("verify", target).output == ""
    assert len(lines(run("cat", target, "--columns", "topic"))) == 556
    assert fingerprint(damaged) == before


def test_repair_in_place_and_its_missing_switches(tmp_path: Path, damaged: Path, rabbit: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(damaged, own)
    for switches in ([], ["--in-place", "--dry-run"], ["--to", tmp_path / "x", "--in-place"]):
        assert "--to DIR, --in-place and --dry-run" in run("repair", own, *switches, code=2).stderr
    assert run("repair", own, "--in-place").stdout
    assert run("repair", own, "--in-place").output == ""
    vhost = tmp_path / "vhost"
    shutil.copytree(rabbit, vhost)
    assert run("repair", vhost, "--in-place").output == ""


def test_repair_says_what_is_left(tmp_path: Path, rocket: Path) -> None:
    """An index whose geometry cannot be determined is rebuilt only when the geometry is given."""
    own = tmp_path / "own"
    shutil.copytree(rocket, own)
    shutil.rmtree(own / "index")
    assert "left: index at 0: missing index" in run("repair", own, "--in-place", code=1).stderr
    (left,) = lines(run("repair", own, "--in-place", "--json", code=1))
    assert (left["left"]["file"], left["left"]["kind"]) == ("index", "missing index")
    assert run("repair", own, "--in-place", "--index-slots", 5000, "--index-entries", 20000).stdout
    assert run("verify", own).output == ""
