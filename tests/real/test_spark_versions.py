"""Checks the table of docs/compatibility.md with each Spark in it from the package registry, classic and Connect.

`MQSTORE_SPARKS` names the versions; `make test-real-full` runs the entire table. Environments are kept in
`.cache/spark-<version>`.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden import archive
from tests.support.cache import CACHE

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = os.environ.get("MQSTORE_SPARKS", "").split()
NAMED = VERSIONS or ["none"]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not VERSIONS, reason="downloads several Sparks; make test-real-full sets MQSTORE_SPARKS"),
]

ROWS = {
    "read": 20_048, "read.limit": 2, "read.schema": 20_048, "read.key": 4, "read.kafka": 6_005, "read.view": 31,
    "read.sql": 20_048, "write": 5_291, "write.shards": 5_291, "write.rabbitmq": 2,
    "stream.read": 6_005, "stream.write": 6_005,
    "mqstore.read": 20_048, "mqstore.read.key": 4, "mqstore.read.kafka": 6_005, "mqstore.read.view": 31,
}  # fmt: skip
NO_CONNECT = ("3.5",)
"""PySpark 3.5 from the registry has neither a Connect server nor Python data sources."""
OLD_NUMPY = {"3.5": ["numpy < 2", "pyarrow < 20"]}
"""Packages that a Spark version needs older than the newest in the registry."""


def environment(version: str) -> Path:
    """The Python of an environment with this Spark and the dependencies of mqstore, but without mqstore."""
    folder = CACHE / f"spark-{version}"
    python = folder / "bin" / "python"
    done = folder / "ready"
    if not done.exists():
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        needs = [*setup["options"]["install_requires"].split("\n"), "pandas >= 2.2, < 3", *OLD_NUMPY.get(version, [])]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", f"pyspark[connect] == {version}.*"]
        subprocess.run([*install, *filter(None, needs)], check=True)
        done.touch()
    return python


def tried(version: str, master: str, folder: Path) -> dict[str, Any]:
    """The result of each step of `spark_version.py` on a Spark version."""
    store = archive.unpack("shop-4.9.3", folder)
    python = str(environment(version))
    own = {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, str(ROOT / "tests" / "real" / "spark_version.py"), str(store), f"{folder}/new-", master],
        env={**os.environ, **own}, capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.rstrip().splitlines()[-1])
    return found


def promised(version: str) -> dict[str, str]:
    """The column of a version in the table of docs/compatibility.md: `yes` or `no` for each step."""
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    (head,) = [cells for cells in lines if cells[0] == "Spark"]
    column = head.index(version)
    return {cells[0]: cells[column] for cells in lines if len(cells) == len(head) and cells[column] in ("yes", "no")}


STEPS = {
    'batch read, `spark.read.format("mqstore")`': ["read", "read.limit", "read.schema", "read.key", "read.kafka"],
    "views (`view=…`)": ["read.view"],
    "SQL, with a temporary view": ["read.sql"],
    "batch write of a RocketMQ store": ["write", "write.shards"],
    "batch write of a RabbitMQ store": ["write.rabbitmq"],
    "streaming read of a RocketMQ store": ["stream.read"],
    "streaming write": ["stream.write"],
    "`mqstore.read`": ["mqstore.read", "mqstore.read.key", "mqstore.read.kafka", "mqstore.read.view"],
}
CONNECT = "the same read and write over Spark Connect"


@pytest.mark.parametrize("version", NAMED)
def test_a_classic_session(version: str, tmp_path: Path) -> None:
    found, table = tried(version, "local[2]", tmp_path), promised(version)
    assert found["version"].startswith(version)
    for what, steps in STEPS.items():
        works = {step: found[step] == ROWS[step] for step in steps}
        assert set(works.values()) == {table[what] == "yes"}, (what, {step: found[step] for step in steps})
    if table['batch read, `spark.read.format("mqstore")`'] == "yes":
        assert "OptionError: option 'topics' = 'orders': there is no such option; did you mean topic?" in found["error"]
    else:
        assert re.search("DATA_SOURCE_NOT_FOUND.*mqstore", found["read"])
    if version in ("4.0", "4.1"):
        assert "streams need Spark 4.2 or newer" in found["stream.read"]


@pytest.mark.parametrize("version", [version for version in NAMED if version not in NO_CONNECT])
def test_spark_connect(version: str, tmp_path: Path) -> None:
    found, table = tried(version, "connect", tmp_path), promised(version)
    works = {step: found[step] == ROWS[step] for step in ROWS if not step.startswith(("mqstore.", "stream."))}
    assert set(works.values()) == {table[CONNECT] == "yes"}, found
    assert "needs a classic SparkSession" in found["mqstore.read"]
