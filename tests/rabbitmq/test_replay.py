"""Every recorded trace of the real rabbit_variable_queue (3.10.8), replayed line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from storage_core.formats.rabbitmq.erlang import erlang_text
from storage_core.rabbitmq.queue.memory_monitor import MemoryMonitor
from tests.rabbitmq.replay.operations import Player
from tests.rabbitmq.replay.runner import replay
from tests.rabbitmq.replay.state import state_of
from tests.rabbitmq.traces import TRACES, answers, compare, differences, with_clock

NAMES = sorted(path.stem for path in TRACES.glob("*.script") if path.stem != "rates")


def test_the_traces_are_there() -> None:
    assert len(NAMES) == 35


@pytest.mark.parametrize("name", NAMES)
def test_a_trace(name: str, tmp_path: Path) -> None:
    script = (TRACES / f"{name}.script").read_text()
    assert differences(script, answers(TRACES / f"{name}.jsonl.gz"), tmp_path) == []


def test_rates_at_the_times_of_the_real_queue(tmp_path: Path) -> None:
    """Rates are updated at the recorded times, so every number after them must be the same."""
    expected = answers(TRACES / "rates.jsonl.gz")
    clock, set_to = with_clock([line["rates_ts_us"] / 1e6 for line in expected])
    config, *operations = erlang_text.parse((TRACES / "rates.script").read_text())
    player = Player(config[1], str(tmp_path), clock)
    compared = 0
    for step, operation in enumerate(operations, 1):
        set_to(step)
        result = None if operation[0] == "sleep" else player.play(operation)
        wanted = expected[step]
        if operation == "ram_duration":
            assert result == pytest.approx(wanted["result"], rel=1e-6)
            compared += 1
        assert list(player.queue.state.rates.values) == pytest.approx(wanted["rates"], rel=1e-6), step
        assert compare(state_of(player.queue.state), wanted) == [], step
    player.close()
    assert compared == 4


def test_the_memory_monitor_of_a_node_under_pressure() -> None:
    """The sampled ratio, sum and count yield the node's desired duration; targets follow from it and the rates."""
    lines = answers(TRACES / "node_memory_pressure.jsonl.gz")
    samples = [line["memory"] for line in lines if "memory" in line]
    used = [0]
    monitor = MemoryMonitor(samples[0]["limit"], 0.5, lambda: used[0])
    names = ["mp.small", "mp.large"]
    for name in names:
        monitor.register(name, lambda _: None)
    changes = 0
    for before, sample in pairwise(samples):
        if sample["desired"] == before["desired"]:
            continue
        changes += 1
        used[0] = sample["used"]
        found = []
        # A queue may report between the update and the sample.
        for reported in (before, sample):
            for name in names:
                monitor.report(name, reported["sum"] / 2 if reported["count"] else float("inf"))
            monitor.update()
            found.append(monitor.desired)
        assert any(value == pytest.approx(sample["desired"], rel=1e-12) for value in found), (sample, found)
    assert changes == 11


def test_the_targets_of_a_node_under_pressure() -> None:
    lines = answers(TRACES / "node_memory_pressure.jsonl.gz")
    cast_at_ms = 14030
    desired: list[float] = [float("inf")] * 2
    last: dict[str, object] = {}
    checked = 0
    for at, line in enumerate(lines):
        if "memory" in line:
            value = line["memory"]["desired"]
            desired = [desired[1], float("inf") if value == "infinity" else value]
            continue
        name, target = line["queue"], line["target_ram_count"]
        if target != last.get(name) and target not in ("infinity", 0):
            rates = sum(line[f"avg_{rate}_rate"] for rate in ("ingress", "egress", "ack_ingress", "ack_egress"))
            after = next(other["memory"]["desired"] for other in lines[at:] if "memory" in other)
            allowed = {int(seconds * rates) for seconds in (*desired, after) if seconds != float("inf")}
            # While messages arrive, rates are updated between the target and the sample.
            assert target in allowed or 14030 < line["t"] < 17800, line
            checked += target in allowed
        assert target != 0 or line["t"] > cast_at_ms
        last[name] = target
    assert checked >= 10


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.rabbitmq.replay", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=dict(os.environ))


def test_the_command_keeps_the_files_of_the_last_line(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = run(str(TRACES / "small_60_restart.script"), "--keep", str(kept))
    assert (done.returncode, done.stderr) == (0, "")
    last = json.loads(done.stdout.splitlines()[-1])
    found = {path.name: path.stat().st_size for path in kept.rglob("*") if path.suffix in (".idx", ".jif")}
    assert found == last["files"]
    assert found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{explode, 3}.", "no such operation: explode"),
        ("{publish, many, #{}}.", "the operation publish is refused"),
        ("{fetch, 1.", "expected"),
    ],
)
def test_a_refused_operation_is_one_line_and_exit_code_1(line: str, words: str, tmp_path: Path) -> None:
    script = tmp_path / "bad.script"
    script.write_text("{config, #{durable => true, env => []}}.\n{publish, 2, #{}}.\n" + line + "\n")
    done = run(str(script))
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_config_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="first line must be"):
        list(replay("{publish, 1, #{}}.", str(tmp_path)))
