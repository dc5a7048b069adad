"""`import`: messages through a pipe, and options of the store as well as of the write."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core import open_store
from tests.command_line.calls import lines, run, shell

SMALL = "--set commitLogFileSize=4000000 --set indexSlots=50 --set indexEntries=9000"
SHOWN = ["--topic", "orders", "--columns", "topic,queueId,queueOffset,key,tags,body,properties"]


@pytest.mark.parametrize("name", ["-", "/dev/stdin --format json"])
def test_what_cat_prints_is_imported(rocket: Path, tmp_path: Path, name: str) -> None:
    copied = tmp_path / "copied"
    cat = f"mqstore cat {rocket} --topic orders --body base64"
    done = shell(f"{cat} | mqstore import {name} {copied} --engine rocketmq --body base64 {SMALL}")
    assert done.stderr == f"mqstore: 6,005 messages written to {copied}\n"
    assert run("cat", copied, *SHOWN).stdout == run("cat", rocket, *SHOWN).stdout


def test_parquet_from_a_pipe_is_refused(tmp_path: Path) -> None:
    done = run("import", "-", tmp_path / "new", "--format", "parquet", code=2)
    assert done.stderr == "mqstore: --format parquet: needs a file: Parquet cannot be read from a pipe\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"topic": "t"', "line 1: not JSON: "), ('{"topic": "a b", "body": "x"}', "row 1: column 'topic' is 'a b': ")],
)
def test_a_mistake_in_what_comes_through_a_pipe(tmp_path: Path, text: str, problem: str) -> None:
    done = shell(f"echo '{text}' | mqstore import - {tmp_path / 'new'} --engine rocketmq")
    assert done.stderr.startswith(f"mqstore: stdin: {problem}")
    assert done.returncode == 2


def test_blank_lines_before_the_first_message(tmp_path: Path) -> None:
    file, store = tmp_path / "rows.jsonl", tmp_path / "new"
    file.write_text('\n  \n{"topic": "t", "body": "a"}\n\n{"topic": "t", "body": "b"}\n')
    run("import", file, store, "--engine", "rocketmq", *SMALL.split())
    assert [row["body"] for row in lines(run("cat", store))] == ["a", "b"]
    file.write_text('\n{"topic": "t", "body": "a"}\n{"tpic": "t"}\n')
    done = run("import", file, store, code=2)
    assert "line 3: the first line has no 'tpic'" in done.stderr


def test_lists_and_objects_of_texts(tmp_path: Path) -> None:
    file, store = tmp_path / "rows.jsonl", tmp_path / "new"
    good = '{"queue": "q", "body": "a", "routingKeys": ["abc"], "headers": {"n": 12, "t": "x"}}\n'
    file.write_text(good)
    run("import", file, store, "--engine", "rabbitmq")
    (row,) = lines(run("cat", store))
    assert (row["routingKeys"], row["headers"]) == (["abc"], {"n": "12", "t": "x"})
    for wrong, problem in {
        '"routingKeys": "abc"': """column 'routingKeys': a list of texts such as ["a", "b"] is required""",
        '"headers": {"n": true}': "column 'headers': 'n' is true; a text is required",
        '"headers": {"n": {"a": 1.5}}': """column 'headers': 'n' is {"a": 1.5}; a text is required""",
        '"headers": [["a", "b"]]': """column 'headers': an object such as {"a": "b"} is required""",
    }.items():
        name = wrong.partition(":")[0]
        file.write_text(good + f'{{"queue": "q", "body": "b", {wrong}}}\n')
        assert name in good
        assert run("import", file, store, code=2).stderr == f"mqstore: {file}: line 2: {problem}\n"
    assert len(lines(run("cat", store))) == 1


def test_options_of_the_store_itself(tmp_path: Path) -> None:
    """RabbitMQ's `vhost` and settings belong to the store, the others to the write."""
    file, store = tmp_path / "rows.jsonl", tmp_path / "new"
    file.write_text('{"body": "a"}\n')
    switches = ["--set", "vhost=shop", "--set", "queue_index_embed_msgs_below=0", "--set", "queue=q"]
    run("import", file, store, "--engine", "rabbitmq", *switches)
    with open_store(str(store)) as opened:
        assert opened.virtual_host == "shop"
    assert [(row["vhost"], row["location"]) for row in lines(run("cat", store))] == [("shop", "store")]
    done = run("import", file, tmp_path / "other", "--engine", "rocketmq", "--set", "vhost=shop", code=2)
    assert "vhost" in done.stderr
    assert not (tmp_path / "other").exists()
