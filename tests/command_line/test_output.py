"""The formatting of rows, sizes, times, tables and progress."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from command_line.output import table, units
from command_line.output.progress import ProgressLine, progress_text
from command_line.output.rows import json_rows
from command_line.output.table import Column, column, print_table
from command_line.output.template import Template
from tests.command_line.calls import process, run, shell


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


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (10 << 10, "10 KiB"), (1 << 20, "1.0 MiB"),
     ((1 << 20) - 1, "1.0 MiB"), (3 << 30, "3.0 GiB"), (1 << 60, "1024 PiB")],
)  # fmt: skip
def test_sizes(size: int, text: str) -> None:
    assert units.size_text(size) == text


def test_durations_counts_and_moments() -> None:
    assert [units.duration_text(s) for s in (0, 59.4, 60, 200, 3600, 18720, 90000)] == [
        "0 s", "59 s", "1 min", "3 min 20 s", "1 h", "5 h 12 min", "1 d 1 h",
    ]  # fmt: skip
    assert [units.counted(n, "queue") for n in (0, 1, 2000)] == ["0 queues", "1 queue", "2,000 queues"]
    assert units.moment_text("2026-11-20T21:40:22.123Z") == "2026-11-20 21:40:22"


ROWS = [{"topic": "orders" * 4, "n": 5, "last": "2026-11-20"}, {"topic": "a", "n": 1234, "last": "2026-11-21"}]
COLUMNS = [column("topic"), column("n", right=True), column("last", rank=1), Column("none", lambda row: "", rank=0)]


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None) -> list[str]:
    monkeypatch.setattr(table, "room", lambda: width)
    print_table(COLUMNS, ROWS, {"topic": "2 topics", "n": "1,239"})
    return capsys.readouterr().out.splitlines()


def test_a_table_in_a_pipe_has_every_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(capsys, monkeypatch, None) == [
        "topic                         n  last",
        "ordersordersordersorders      5  2026-11-20",
        "a                         1,234  2026-11-21",
        "2 topics                  1,239",
    ]


def test_a_narrow_table_leaves_columns_out_then_cuts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(capsys, monkeypatch, 40)[0].split() == ["topic", "n"]
    narrow = printed(capsys, monkeypatch, 20)
    assert max(map(len, narrow)) <= 20
    assert narrow[1] == "orders…orders      5"
    assert max(map(len, printed(capsys, monkeypatch, 5))) == table.SHORTEST + 7, "no word is cut to nothing"


def test_wide_letters_count_twice() -> None:
    assert table.width_of("订单") == 4
    assert table.width_of("é") == table.width_of("e\u0301") == 1


def test_templates() -> None:
    template = Template(r"{a}\t{b.c}\n{{x}}{d.1.e}")
    assert template.columns == ("a", "b", "d")
    row = {"a": 1, "b": {"c": "text"}, "d": [0, {"e": None}]}
    assert template.fill(row) == "1\ttext\n{x}\n"
    assert template.fill({"a": [1], "b": "no map"}) == "[1]\t\n{x}\n"


def test_what_a_line_of_progress_says() -> None:
    text = progress_text("reading", 1 << 30, 3 << 30, 1 << 30, 4.0, units.size_text)
    assert text == "reading: 1.0 GiB of 3.0 GiB, 256 MiB/s, 8 s left"
    assert progress_text("reading", 5, 0, 0, 0.0, str) == "reading: 5"


def test_progress_is_for_work_that_takes_long_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, 0.1, 0.7, 0.75, 2.0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    line = ProgressLine(lambda: next(moments))
    for done in (1, 7, 8, 20):
        line.bytes_done("walking", done << 20, 40 << 20)
    shown = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert [text.split(",")[0] for text in shown] == ["walking: 7.0 MiB of 40 MiB", "walking: 20 MiB of 40 MiB"]
    line.clear()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_no_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 5.0, 9.0])
    line = ProgressLine(lambda: next(moments))
    line.bytes_done("walking", 1, 2)
    line.clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_pipe_gets_utf_8_in_every_locale(tmp_path: Path, encoding: str) -> None:
    file, store = tmp_path / "rows.jsonl", tmp_path / "new"
    file.write_text('{"topic": "t", "body": "ü – 😀"}\n')
    run("import", file, store, "--engine", "rocketmq", "--set", "commitLogFileSize=16384")
    other = {**os.environ, "PYTHONIOENCODING": encoding}
    for call in (("cat", store), ("ls", store)):
        assert process(*call, env=other, encoding="utf-8").stdout == process(*call, encoding="utf-8").stdout != ""


@pytest.mark.parametrize(
    ("call", "code"),
    [("ls", 0), ("verify", 0), ("cat", 0), ("export - -n 1", 0), ("cat --topic none", 2), ("--help", 0)],
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_changes_no_exit_code(rocket: Path, call: str, code: int, closed: str) -> None:
    command, *more = call.split()
    arguments = " ".join([command, str(rocket), *more] if command != "--help" else [command])
    done = shell(f"mqstore {arguments} {closed}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
