"""The `mqstore` command on real stores: rows, files, exit codes, and one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from command_line.main import main
from command_line.rows import json_rows
from storage_core import open_store
from tests.golden.archive import GOLDEN, fingerprint, truth, unpack
from tests.rabbitmq import golden
from tests.rabbitmq.test_damage import edit, first_record


@pytest.fixture(scope="module")
def rocket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("shop-4.9.3", tmp_path_factory.mktemp("rocket"))


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path_factory.mktemp("rabbit")) / golden.DEFAULT_VHOST


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    with tarfile.open(GOLDEN / "rabbitmq" / "node" / "kinds" / "node.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder)
    return folder / "node"


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def lines(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("mqstore")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mqstore, version ")
    done = subprocess.run([sys.executable, "-c", "import sys, command_line.main; print(*sys.modules)"],
                          capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert "pyspark" not in done.stdout.split(), "the command needs no Spark"


def test_ls_is_the_view_of_queues(rocket: Path, rabbit: Path) -> None:
    for path in (rocket, rabbit):
        before = fingerprint(path)
        with open_store(str(path)) as store:
            wanted = [row for batch in store.view("queues") for row in json_rows(batch)]
        assert [{**row, "store": path.name} for row in wanted] == lines(run("ls", path, "--json"))
        shown = run("ls", path).stdout.splitlines()
        assert len(shown) == len(wanted) + 1
        assert shown[0].split()[0] in ("topic", "vhost")
        assert fingerprint(path) == before


def test_several_stores_are_told_apart(node: Path) -> None:
    assert {row["store"] for row in lines(run("ls", node, "--json"))} == {
        path.name for path in (node / "msg_stores" / "vhosts").iterdir()
    }
    assert run("ls", node).stdout.splitlines()[0].split()[-1] == "store"


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


def test_cat_of_a_rabbitmq_queue(rabbit: Path) -> None:
    found = lines(run("cat", rabbit, "--queue", "e.prio", "--body", "base64"))
    rows = golden.by_queue(golden.table(rabbit, columns=("queue", "sequenceId")))["e.prio"]
    assert [row["sequenceId"] for row in found] == [row["sequenceId"] for row in rows]
    assert {"headers", "routingKeys", "rawProperties", "redelivered"} <= set(found[0])


def test_find(rocket: Path, rabbit: Path) -> None:
    row = lines(run("cat", rocket, "--topic", "payments", "-n", 1))[0]
    by_id = lines(run("find", rocket, row["msgId"]))
    assert row in by_id
    assert row in lines(run("find", rocket, row["keys"][0]))
    for path in (rocket, rabbit):
        assert lines(run("find", path, "no such thing", code=1)) == []
    row = lines(run("cat", rabbit, "-n", 1))[0]
    assert lines(run("find", rabbit, row["guid"])) != []


def test_offsets(rocket: Path) -> None:
    found = lines(run("offsets", rocket, "--json"))
    assert found
    assert all(row["lag"] == row["maxOffset"] - row["committed"] for row in found)


def test_export(rocket: Path, rabbit: Path, tmp_path: Path) -> None:
    done = run("export", rabbit, tmp_path / "all.parquet")
    assert "182 messages written to" in done.stderr
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table["body"].to_pylist() == golden.table(rabbit)["body"].to_pylist()
    run("export", rocket, tmp_path / "some.jsonl", "--topic", "orders")
    written = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert written == lines(run("cat", rocket, "--topic", "orders"))
    before = (tmp_path / "some.jsonl").read_bytes()
    assert "is there already" in run("export", rocket, tmp_path / "some.jsonl", code=2).stderr
    assert (tmp_path / "some.jsonl").read_bytes() == before


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
    assert json.loads(run("definitions", node, "--json").stdout) == found
    run("definitions", node, "-o", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text()) == found
    text = run("definitions", rocket, code=2).stderr
    assert text == (
        f"mqstore: UnsupportedFormatError: {rocket}: a rocketmq store needs no definitions; start a broker on it\n"
    )


def mistakes(rocket: Path, rabbit: Path, node: Path) -> list[tuple[list[object], str]]:
    return [
        (["ls", "/nowhere"], "StoreNotFoundError: /nowhere: there is no such directory"),
        (["cat", rocket.parent.parent.parent / "nothing*"], "nothing matches this pattern"),
        (["cat", node], "holds 2 stores; give one of"),
        (["cat", rocket, "--topic", "ordres"], "did you mean orders?"),
        (["cat", rocket, "--queue", "1"], "option '--queue' = '1': a queue's number beside one --topic is wanted"),
        (["cat", rocket, "--from", "tomorrow"], "epoch milliseconds or an ISO 8601 time is wanted"),
        (["cat", rocket, "--columns", "bodi"], "bodi"),
        (["cat", rabbit, "--key", "k"], "RabbitMQ stores have no key index"),
        (["offsets", rabbit], "it is one of messages, queues, segments, damage"),
        (["export", rabbit, "file.csv"], "its name must end in .parquet or .jsonl"),
    ]


def test_a_mistake_is_one_line_and_exit_code_2(rocket: Path, rabbit: Path, node: Path) -> None:
    for arguments, text in mistakes(rocket, rabbit, node):
        done = run(*arguments, code=2)
        assert text in done.stderr, arguments
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("mqstore: ")
        assert done.stdout == ""
    for arguments in (["no-such-command"], ["ls"], ["ls", rocket, "--no-such-option"]):
        run(*arguments, code=2)


def test_damage_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    store = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    path, position = first_record(store, "b.large")
    edit(path, lambda data: data.__setitem__(position + 26, 99))
    text = run("cat", store, code=1).stderr
    assert text.startswith(f"mqstore: CorruptionError: {path} at {position}: ")
    assert text.count("\n") == 1
    assert len(lines(run("cat", store, "--mode", "DROPMALFORMED"))) == 181
    done = run("export", store, tmp_path / "out.parquet", code=1)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.parquet").exists(), "half a file is none"


def test_a_reader_that_has_seen_enough(rocket: Path) -> None:
    command = [sys.executable, "-m", "command_line", "cat", str(rocket)]
    done = subprocess.run(f"{' '.join(command)} | head -1", shell=True, capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[2])  # fmt: skip
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_values_that_json_has_not() -> None:
    schema = pa.schema(
        [("t", pa.timestamp("us", "UTC")), ("m", pa.map_(pa.string(), pa.string())), ("rawProperties", pa.binary())]
    )
    columns = [[None, 253402300800_000_000, -1000], [None, [], [("a", "b")]], [None, b"", b"\xff"]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    batch = pa.record_batch(arrays, schema=schema)
    assert list(json_rows(batch)) == [
        {"t": None, "m": None, "rawProperties": None},
        {"t": "10000-01-01T00:00:00.000Z", "m": {}, "rawProperties": ""},
        {"t": "1969-12-31T23:59:59.999Z", "m": {"a": "b"}, "rawProperties": "/w=="},
    ]


def test_every_command_has_help() -> None:
    show: Callable[..., Result] = run
    for name in main.commands:
        assert show(name, "--help").stdout.startswith("Usage: ")
