"""Calls of the command, in this process or in a separate one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from command_line.main import main

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
ROOT = Path(__file__).parents[2]


def run(*arguments: object, code: int = 0) -> Result:
    """Runs the command, which must exit with `code`."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def lines(done: Result) -> list[dict[str, Any]]:
    """The JSON objects on stdout."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def words(done: Result) -> list[list[str]]:
    """The words of each line on stdout."""
    return [line.split() for line in done.stdout.splitlines()]


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command in a separate process, as a shell does."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": ROOT, **options}
    return subprocess.run([sys.executable, "-m", "command_line", *map(str, arguments)], **settings, check=False)


def without_roots_rights() -> None:
    """Drops capabilities before a process starts, so that file modes apply to root as they do to other users."""
    system = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        system.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def shell(line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a line of shell in which `mqstore` is the command."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": ROOT, **options}
    environment = {**os.environ, "PYTHON": sys.executable}
    script = f'mqstore() {{ "$PYTHON" -m command_line "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", script], env=environment, **settings, check=False)
