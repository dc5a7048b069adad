"""The commands on a folder of RabbitMQ streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line.calls import lines, run, words
from tests.golden.archive import fingerprint
from tests.rabbitmq import stream_golden as golden


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    return golden.unpack("s06_protocol_messages", tmp_path)


def test_messages_are_shown_found_and_exported(streams: Path, tmp_path: Path) -> None:
    before = fingerprint(streams)
    (delivered,) = golden.truth("s06_protocol_messages").values()
    offsets = [message["offset"] for message in delivered]
    assert [row["streamOffset"] for row in lines(run("cat", streams))] == offsets
    assert [row["streamOffset"] for row in lines(run("cat", streams, "--queue", "proto", "-n", 3))] == offsets[:3]
    assert [row["streamOffset"] for row in lines(run("find", streams, "77"))] == [1], "its messageId"
    assert run("find", streams, "no such id", code=1).stdout == ""
    assert "8 messages written" in run("export", streams, tmp_path / "out.jsonl").stderr
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["streamOffset"] for row in written] == offsets
    assert fingerprint(streams) == before


def test_the_store_at_a_glance(streams: Path, tmp_path: Path) -> None:
    fields = dict(line.split(maxsplit=1) for line in run("info", streams).stdout.splitlines())
    assert fields["engine"] == "RabbitMQ, stream log version 1"
    assert fields["state"] == "a stream's log, which reads the same after a stop and a kill"
    assert fields["messages"].startswith("8 (")
    assert words(run("ls", streams))[1][:3] == ["proto", "stream", "8"]
    assert run("verify", streams).stdout == ""
    run("report", streams, "-o", tmp_path / "report.html")
    assert "proto" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["offsets", "--group", "g"], "a stream has consumers, leave it out"),
        (["offsets", "--at", "2026-01-01"], "a stream has consumers, leave it out"),
        (["topics"], "RabbitMQ has no topics"),
        (["definitions"], "is for classic queues"),
    ],
)
def test_what_streams_have_not_is_one_line(streams: Path, arguments: list[str], message: str) -> None:
    text = run(*arguments, streams, code=2).stderr
    assert message in text
    assert text.count("\n") == 1


def test_who_consumes_and_who_publishes(tmp_path: Path) -> None:
    node = golden.unpack("s01_clean", tmp_path)
    (row,) = lines(run("offsets", node, "--json"))
    assert (row["kind"], row["queue"], row["sequence"], row["maxOffset"]) == ("publisher", "evénts/1", 54, 54)
    assert words(run("offsets", node.parent))[1][:2] == ["evénts/1", "publisher"]


def test_damage_is_named_and_not_repaired(streams: Path, tmp_path: Path) -> None:
    (segment,) = streams.rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    (row,) = lines(run("verify", streams, "--json", code=1))
    assert row["file"] == str(segment.relative_to(streams))
    text = run("repair", streams, "--to", tmp_path / "repaired", code=2).stderr
    assert "no stream queue can be repaired; read it with `mqstore cat --mode dropmalformed`" in text
    assert not (tmp_path / "repaired").exists()
