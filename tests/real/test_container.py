"""The steps of the `Containerfile`, run without a container engine: its `pip install` in a fresh environment from a
copy of the checkout, then its `CMD`. `MQSTORE_CONTAINER=1` runs it (`make test-real-full`): it downloads PySpark.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mqstore import ensure_java

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "MQSTORE_CONTAINER" not in os.environ, reason="downloads PySpark; make test-real-full sets MQSTORE_CONTAINER"
    ),
]

ROOT = Path(__file__).resolve().parents[2]


def steps(word: str) -> list[str]:
    """The rest of each line of the Containerfile that starts with a word."""
    return re.findall(rf"(?m)^{word} (.+)$", (ROOT / "Containerfile").read_text(encoding="utf-8"))


def test_the_steps_of_the_container_end_in_the_demo(tmp_path: Path) -> None:
    system, install = steps("RUN")
    assert "openjdk-17-jre-headless" in system, "the one step that is not run here: Debian's Java"
    assert install.startswith("pip install ")
    work = tmp_path / "work"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "own")], check=True)
    programs = tmp_path / "own" / "bin"
    java = ensure_java()
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    variables = dict(pair.split("=") for line in steps("ENV") for pair in line.split())
    environment = {**plain, **variables, "JAVA_HOME": java, "PATH": f"{programs}:{java}/bin:/usr/bin:/bin"}
    subprocess.run(shlex.split(install), cwd=work, env=environment, check=True, executable=str(programs / "pip"))
    (command,) = steps("CMD")
    done = subprocess.run(
        json.loads(command), cwd=work, env=environment, capture_output=True, text=True, check=False,
        executable=str(programs / "python"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    assert "and the broker's store is as it was" in done.stdout
    assert (work / "demo-output" / "messages-over-time.png").is_file()
