"""Errors of the command: one line, in terms of the command line, and the right exit code."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line.switches import SWITCHES
from command_line.wording import error_text, in_switches
from storage_core import errors
from storage_core.errors import OptionError
from storage_core.option_table import OPTIONS
from storage_core.options.read import STORAGE
from tests.command_line.calls import ROOT, lines, process, run, shell, without_roots_rights
from tests.golden.archive import unpack
from tests.rabbitmq import golden
from tests.support.rabbitmq_damage import edit, first_record


def mistakes(rocket: Path, rabbit: Path, node: Path) -> list[tuple[list[object], str]]:
    return [
        (["ls", "/nowhere"], "mqstore: /nowhere: there is no such directory"),
        (["cat", rocket.parent.parent.parent / "nothing*"], "nothing matches this pattern"),
        (["cat", rocket, "--topic", "ordres"], "mqstore: --topic ordres: "),
        (["cat", rocket, "--queue", "1"], "mqstore: --queue 1: needs exactly one --topic"),
        (["cat", rocket, "--topic", "orders", "--queue", "a"], "mqstore: --queue a: must be numbers of the queues"),
        (["cat", rocket, "--topic", "orders", "--queue", "99"], "mqstore: --queue 99: the topic has no such queue"),
        (["cat", rabbit, "--queue", "nope"], "mqstore: --queue nope: there is no such queue"),
        (["ls", rocket, "--engine", "rabbitmq"], f"{rocket}: this is a RocketMQ store, not a RabbitMQ store\n"),
        (["ls", rocket.parent, "--engine", "rabbitmq"], "the stores here are RocketMQ's, not RabbitMQ's\n"),
        (["ls", rabbit, "--engine", "rocketmq"], f"{rabbit}: this is a RabbitMQ store, not a RocketMQ store\n"),
        (["cat", rocket, "-n", "abc"], "'abc' is not a valid integer (see "),
        (["cat", rocket, "--interval", "abc"], "'abc' is not a valid number (see "),
        (["cat", rocket, "--columns", "topic,nope"], "mqstore: --columns nope: there is no such column; the columns"),
        (["cat", rocket, "--format", "{nope}"], "mqstore: --format {nope}: there is no such column; the columns are"),
        (["cat", rocket, "--format", "{nope}"], ", storeTimestamp, msgId, offsetMsgId, "),
        (["cat", rocket, "--from", "tomorrow"], "mqstore: --from tomorrow: must be epoch milliseconds, ISO 8601"),
        (["cat", rocket, "--start", "soon"], "mqstore: --start soon: must be earliest"),
        (
            ["cat", rocket, "--start", "99999"],
            "mqstore: %DLQ%mailer/0: --start 99999 is after the end; the queue holds [",
        ),
        (["cat", rocket, "--tag", "\udcff"], "mqstore: --tag \\udcff: is not UTF-8 text\n"),
        (["cat", rocket, "--columns", "\udcff"], "mqstore: --columns \\udcff: is not UTF-8 text\n"),
        (["cat", rocket, "--format", "{\udcff}"], "mqstore: --format \\udcff: is not UTF-8 text\n"),
        (["find", rabbit, "\udcff"], "\\udcff: is not UTF-8 text\n"),
        (["cat", rocket, "--columns", "bodi"], "mqstore: --columns bodi"),
        (["cat", rocket, "--mode", "strict"], "mqstore: --mode strict: allowed are"),
        (["cat", rocket, "--topic", "a", "--topic-pattern", "b"], "mqstore: --topic-pattern b: excludes"),
        (["cat", rocket, "--include-acked"], "mqstore: --include-acked"),
        (["cat", rocket, "-n", "1", "--last", "1"], "mqstore: --last 1: excludes -n"),
        (["cat", rocket, "--as-of", "5"], "mqstore: --as-of 5: belongs to RabbitMQ stores, and"),
        (["info", rocket, "--commit", "applied"], "mqstore: --commit applied: belongs to RabbitMQ stores, and"),
        (["ls", rocket, "--vhost", "x"], "mqstore: --vhost x: belongs to RabbitMQ stores, and"),
        (["cat", rocket, "--queue-type", "quorum"], "mqstore: --queue-type quorum: belongs to RabbitMQ stores, and"),
        (["ls", rabbit, "--commit-log-path", "/x"], "mqstore: --commit-log-path /x: belongs to RocketMQ stores, and"),
        (["cat", rabbit, "--key", "k"], "no key index; use `mqstore find`, which searches messageId, correlationId "),
        (["cat", rabbit, "--key", "k"], "mqstore: --key k: RabbitMQ"),
        (["cat", rabbit, "--from", "2020-01-01"], "; read those alone with --queue-type stream, or use --start\n"),
        (["offsets", rabbit], "mqstore: "),
        (["export", rabbit, "file.xml"], "mqstore: file.xml: its name must end in .parquet, .jsonl, .csv"),
        (["export", rabbit, "none/file.csv"], "mqstore: none/file.csv: there is no directory none"),
        (["export", rabbit, "-", "--format", "parquet"], "mqstore: --format parquet: needs a file"),
        (["definitions", node, "-o", "none/file.json"], "mqstore: none/file.json: there is no directory none"),
    ]


def test_a_mistake_is_one_line_and_exit_code_2(rocket: Path, rabbit: Path, node: Path) -> None:
    for arguments, text in mistakes(rocket, rabbit, node):
        done = run(*arguments, code=2)
        assert done.stderr.count("\n") == 1, done.stderr
        assert text in done.stderr, arguments
        assert "Error:" not in done.stderr
        assert "option" not in done.stderr.replace("no such option", "")
        assert done.stdout == ""
    for arguments in (["no-such-command"], ["ls"], ["ls", rocket, "--no-such-option"], ["cat", rocket, "-n", "x"]):
        done = run(*arguments, code=2)
        assert (done.stderr.count("\n"), done.stdout) == (1, ""), done.stderr
        assert done.stderr.startswith("mqstore: ")
        assert "--help" in done.stderr
    assert "did you mean export?" in run("exprot", code=2).stderr


def test_damage_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    store = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST
    path, position = first_record(store, "b.large")
    edit(path, lambda data: data.__setitem__(position + 26, 99))
    text = run("cat", store, code=1).stderr
    assert text.startswith(f"mqstore: {path} at {position}: ")
    assert "--mode DROPMALFORMED leaves such messages out" in text
    assert text.count("\n") == 1
    assert len(lines(run("cat", store, "--mode", "DROPMALFORMED"))) == 181
    done = run("export", store, tmp_path / "out.parquet", code=1)
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["vhosts"], "half a file is none"


@pytest.mark.parametrize("command", ["cat", "ls", "export {} -"])
def test_a_full_disk(rocket: Path, command: str) -> None:
    call = command.format(rocket) if "{}" in command else f"{command} {rocket}"
    done = shell(f"mqstore {call} > /dev/full")
    assert done.stderr == "mqstore: the output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_no_permission_to_write(rocket: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = process("export", rocket, tmp_path / "x.parquet", preexec_fn=without_roots_rights)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no permission to write in" in done.stderr


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """A folder that nobody may enter while the block runs."""
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(0o755)


def test_no_permission_to_read_the_log(tmp_path: Path) -> None:
    store = unpack("broker-4.9.3", tmp_path)
    with closed(store / "commitlog"):
        done = process("ls", store, preexec_fn=without_roots_rights)
    assert (done.returncode, done.stdout) == (2, "")
    advice = "Permission denied; try again as a user who may"
    assert done.stderr == f"mqstore: {store}/commitlog: {advice}\n"


def test_no_permission_to_read_one_store_of_several(both: Path) -> None:
    store = unpack("broker-4.9.3", both)
    with closed(store / "commitlog"):
        done = process("ls", both, preexec_fn=without_roots_rights)
    assert done.returncode == 1
    assert f"left out: {store}/commitlog: Permission denied; try again as a user who may\n" in done.stderr


def test_the_offsets_of_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    store = unpack("broker-4.9.3", tmp_path)
    config = store / "config"
    with closed(config):
        done = process("offsets", store, preexec_fn=without_roots_rights)
        served = process("ls", store, preexec_fn=without_roots_rights)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mqstore: {config}/consumerOffset.json: Permission denied; read as a user who may, or copy the file\n"
    )
    assert (served.returncode, served.stderr) == (0, ""), "messages need no config"

    (config / "consumerOffset.json").write_text("{broken")
    assert len(lines(run("offsets", store, "--json"))) > 10, "a broker takes the .bak"
    (config / "consumerOffset.json.bak").write_text("")
    done = run("offsets", store, code=1)
    assert done.stderr.startswith(f"mqstore: {config}/consumerOffset.json at 1: not JSON: ")
    assert done.stderr.count("\n") == 1
    (config / "consumerOffset.json").unlink()
    assert "no consumer group has committed an offset" in run("offsets", store, code=1).stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_signal_leaves_no_half_file(
    rocket: Path, tmp_path: Path, number: signal.Signals, code: int, kind: str
) -> None:
    # Many links to one store, so that the export takes long enough to be interrupted.
    folder = tmp_path / "stores"
    folder.mkdir()
    for copy in range(60):
        (folder / f"s{copy}").symlink_to(rocket)
    command = [sys.executable, "-m", "command_line", "export", str(folder), str(tmp_path / f"out.{kind}")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 300
        while not [path for path in tmp_path.iterdir() if ".part-" in path.name]:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(number)
        _, text = process.communicate(timeout=300)
    assert (process.returncode, text) == (code, "mqstore: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["stores"]


# -- the wording of errors


def test_a_few_texts_of_the_engines() -> None:
    assert (
        error_text(OptionError("topic", "ordres", "there is no such topic")) == "--topic ordres: there is no such topic"
    )
    assert error_text(OptionError("queue", "jbos", "there is no such queue")) == "--queue jbos: there is no such queue"
    assert error_text(OptionError("queues", "0", "must be more")) == "--set queues=0: must be more"
    for text, wanted in (
        ("option scan=log reads every message", "--scan log reads every message"),
        ("name it with option commitLogPath.", "name it with --commit-log-path."),
        ("set failOnDataLoss=false to read what is left", "give --fail-on-data-loss false to read what is left"),
        ("give an offset, or failOnDataLoss=false", "give an offset, or --fail-on-data-loss false"),
        ("the option recovery=none reads them", "--recovery none reads them"),
        ("option mode=DROPMALFORMED leaves", "--mode DROPMALFORMED leaves"),
        ("3 damaged messages left out (mode=DROPMALFORMED)", "3 damaged messages left out (--mode DROPMALFORMED)"),
        ("or name one topic with option topic", "or name one topic with --topic"),
        ("leave out the option engine", "leave out --engine"),
        (
            "name it with commitLogPath; did you mean commitLogPath?",
            "name it with --commit-log-path; did you mean commitLogPath?",
        ),
        ("/data/topic=x/store: is empty", "/data/topic=x/store: is empty"),
    ):
        assert in_switches(text) == wanted


def error_texts() -> list[tuple[str, str]]:
    """Every text in the storage core that may be part of an error or a warning: its location and the text."""
    found = []
    for path in sorted((ROOT / "storage_core").rglob("*.py")):
        tree = ast.parse(path.read_text())
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | documented:
                text = node.value
            else:
                continue
            if " " in text.strip():
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return found


def test_no_text_of_the_engines_names_an_option_of_spark() -> None:
    """If an engine's text names an option that has a switch, the command names the switch instead."""
    texts = error_texts()
    assert sum("option" in text for _, text in texts) > 15
    camel = [name for name in SWITCHES if name != name.lower()]
    wrong = []
    for where, text in texts:
        shown = in_switches(text)
        named = re.search(rf"\b(?:{'|'.join(SWITCHES)})=|\boptions? '?(?:{'|'.join(SWITCHES)})\b|"
                          rf"(?<![-\w])(?:{'|'.join(camel)})\b", shown)  # fmt: skip
        if named:
            wrong.append((where, shown))
    # The option table defines these names; it also lists all views and options for a wrong name.
    assert [each for each in wrong if "options/" not in each[0]] == []


def test_every_switch_is_an_option() -> None:
    assert set(SWITCHES) <= {option.name for option in OPTIONS} | {STORAGE.rstrip(".")}


def test_no_error_has_its_class_name() -> None:
    for kind in (errors.StoreNotFoundError, errors.UnsupportedFormatError, errors.DataLossError):
        assert error_text(kind("/path: what")) == "/path: what"
    assert error_text(errors.CorruptionError("/file", 12, "bad")) == "/file at 12: bad"
