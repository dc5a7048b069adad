"""The notebook runs in a kernel of an environment that is not activated, and reproduces its stored outputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqstore import ensure_java
from pyspark_mqstore.workers import DECIDED_ELSEWHERE

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "dead_broker.ipynb"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def outputs(path: Path) -> list[tuple[str, list[Any]]]:
    """The code cells of a notebook, each with the texts that it shows, without pictures and output to stderr."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        (
            "".join(cell["source"]),
            ["".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output],
        )
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_in_a_kernel_that_nobody_activated(tmp_path: Path) -> None:
    ensure_java()
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "data")
    plain = {name: value for name, value in os.environ.items() if name not in DECIDED_ELSEWHERE}
    # The first python3 on the PATH, if any, is not the environment's.
    plain |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = tmp_path / "ran.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK), str(ran)],
        cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert outputs(ran) == outputs(NOTEBOOK)
    assert sum(len(shown) for _, shown in outputs(ran)) >= 5
