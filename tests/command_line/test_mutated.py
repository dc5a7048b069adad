"""Whatever lies in a store's files: a command ends with 0, 1 or 2 and a few lines, never with a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from command_line.main import main

CALLS = (
    "info {}", "info {} --json", "ls {}", "topics {}", "offsets {}", "offsets {} --at 2026-11-20T21:37:00", "verify {}",
    "offsets reset {} --group slow --to earliest", "cat {} -n 3 --mode dropmalformed", "cat {} --last 3",
    "cat {} --scan log -n 3 --mode permissive", "find {} no-such-key", "report {} -o {}.html --force",
)  # fmt: skip
MOST_LINES = 4
REGION = 100_000
"""Bytes at the start of a file in which it is damaged: the rest of most files is empty."""


def mutate(path: Path, r: random.Random) -> None:
    """Cuts, lengthens or removes a file, or changes some of its bytes."""
    size = path.stat().st_size
    how = r.choice(("cut", "lengthen", "remove", *["change"] * 5))
    if how == "remove":
        path.unlink()
        return
    with path.open("r+b") as file:
        if how == "cut":
            file.truncate(r.randrange(size + 1))
        elif how == "lengthen":
            file.seek(0, 2)
            file.write(r.randbytes(r.randrange(1, 5000)))
        elif size:
            for _ in range(r.choice((1, 8, 64))):
                file.seek(r.randrange(min(size, REGION)))
                file.write(r.choice((r.randbytes(1), bytes(8), r.randbytes(30))))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fixture", ["groups", "rabbit"])
def test_a_mutated_store(fixture: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = tmp_path / "store"
    shutil.copytree(request.getfixturevalue(fixture), store)
    r = random.Random(f"{fixture} {seed}")
    for path in r.sample(sorted(path for path in store.rglob("*") if path.is_file()), r.choice((1, 2, 5))):
        mutate(path, r)
    for call in CALLS:
        done = CliRunner().invoke(main, call.format(store, store).split())
        assert done.exception is None or isinstance(done.exception, SystemExit), (call, done.exception)
        assert done.exit_code in (0, 1, 2), call
        assert done.stderr.count("\n") <= MOST_LINES, (call, done.stderr)
