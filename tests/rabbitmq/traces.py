"""Compares a replay with the answers of the real queue, as `tests/rabbitmq/replay/README.md` describes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rabbitmq.replay.runner import replay

TRACES = Path(__file__).parents[1] / "golden" / "rabbitmq" / "traces"


def answers(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace, compressed or not."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [json.loads(line) for line in text.splitlines()]


def differences(script: str, expected: list[dict[str, Any]], folder: Path) -> list[str]:
    """The members that differ in the first wrong line; empty if the replay is right."""
    number = -1
    for number, line in enumerate(replay(script, str(folder))):
        if number >= len(expected):
            return ["more lines than the real queue's"]
        found = compare(line, expected[number])
        if found:
            return [f"line {number} {line['op']}: {difference}" for difference in found]
    return [] if number + 1 == len(expected) else [f"{number + 1} lines, not {len(expected)}"]


def compare(line: dict[str, Any], expected: dict[str, Any], skipped: tuple[str, ...] = ("op",)) -> list[str]:
    """The members of `line` that differ from `expected`, except `skipped`: `op` may be spelled in any way."""
    found = []
    for member, value in line.items():
        wanted = expected[member]
        if member == "index":
            wanted = {name: wanted[name] for name in value}
        if member not in skipped and value != wanted:
            found.append(f"{member} is {value}, not {wanted}")
    return found


def with_clock(times_s: list[float]) -> tuple[Callable[[], float], Callable[[int], None]]:
    """A stopped clock, and a function that sets it to the time of a step."""
    now = [times_s[0]]

    def set_to(step: int) -> None:
        now[0] = times_s[step]

    return lambda: now[0], set_to
