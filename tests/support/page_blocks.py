"""The code blocks of the pages, extracted to be run as printed: blocks, their output, and where their paths point.

One rule substitutes paths: the pages use the folders of `FOLDERS`, and in a block each of them, as a whole path
component at the start of a path, is replaced by its folder below the test's own. Nothing else is changed. In a shell
block, `s3://` is served from such a folder too (`page_command.py`).
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FOLDERS = {
    "/backup/rabbit@host": "node/rabbit@host",
    "/backup/vhosts": "node/rabbit@host/msg_stores/vhosts",
    "/backup": "backup",
    "/disks": "disks",
    "/data": "data",
    "/tmp/mqstore": "data/tmp",
    "STORE": "backup/broker-a/store",
}
"""A folder as pages write it, and the folder below the test's own that replaces it. `/data` is new for each block."""

NOT_RUN = {
    "make": "each target makes its own environment; .ci/run and the fresh clone of a release run them",
    "pip": "changes the environment; tests/test_packaging.py installs the wheel",
    "git": "needs the network",
    "docker": "no container engine in the tests; tests/real/test_container.py checks the file's steps",
    "spark-submit": "tests/real/test_spark_submit.py runs it on a cluster of its own",
    "export": "belongs to the commands that are not run",
    "chown": "needs the broker's user",
    "rabbitmqctl": "needs a node",
    "kubectl": "needs a cluster",
    "systemctl": "needs the broker's machine",
    "rsync": "needs a second machine",
    "jupyter": "opens a browser; tests/real/test_notebook.py runs the notebook",
    "mike": "publishes the documentation",
}
"""Programs whose lines in a shell block are not run, and why."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One code block of a page, and the output that the page shows for it (None if it shows none)."""

    page: Path
    line: int
    language: str
    code: str
    printed: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The blocks in these languages on all pages, in order."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] in languages:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, match[1], match[2], match[3]))
    return found


def substituted(code: str, root: Path) -> str:
    """`code` with the pages' folders replaced by those below `root`."""
    names = "|".join(re.escape(name) for name in sorted(FOLDERS, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({names})(?![\w-])", lambda match: str(root / FOLDERS[match[1]]), code)


def shown(text: str, root: Path) -> str:
    """Printed text with the pages' own folder names, and without trailing whitespace on its lines."""
    for name in sorted((name for name in FOLDERS if name.startswith("/")), key=lambda name: -len(FOLDERS[name])):
        text = text.replace(str(root / FOLDERS[name]), name)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).strip("\n")


def run_python(block: Block, spark: Any, root: Path) -> str:
    """Runs a block in a namespace that contains only `spark`; returns what it prints.

    A DataFrame that is an expression statement (`spark.read…` alone) is read, and must have rows.
    """
    names: dict[str, Any] = {"spark": spark, "__name__": "__page__"}
    tree = ast.parse(substituted(block.code, root))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(root / "data"):
        for statement in tree.body:
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), str(block), "exec"), names)  # noqa: S102 (the page's code)
                continue
            value = eval(compile(ast.Expression(statement.value), str(block), "eval"), names)  # noqa: S307
            if hasattr(value, "isStreaming") and not value.isStreaming:
                assert value.count(), f"{block}: no rows: {ast.unparse(statement)}"
    return shown(printed.getvalue(), root)


def run_shell(block: Block, root: Path) -> str:
    """Runs the lines of a shell block that are not `NOT_RUN`; returns their output. A nonzero exit code is an error."""
    lines = [line for line in statements(block.code) if program(line) not in NOT_RUN]
    if not lines:
        return ""
    shims = root / "bin"
    shims.mkdir(exist_ok=True)
    module = "tests.support.page_command" if "s3://" in block.code else "command_line"
    for name, arguments in (("mqstore", f" -m {module}"), ("python", "")):
        (shims / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (shims / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", substituted("\n".join(lines), root)],
        capture_output=True,
        text=True,
        cwd=root / "data",
        env={
            **os.environ,
            "PATH": f"{shims}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "MQSTORE_PAGE_BUCKETS": str(root / "data" / "tmp" / "buckets"),
        },
        check=False,
    )
    assert done.returncode == 0, f"{block}: exit code {done.returncode}: {done.stderr or done.stdout}"
    return shown(done.stdout, root)


def statements(code: str) -> Iterator[str]:
    """The commands of a shell block, each with its continuation lines."""
    held = ""
    for line in code.splitlines():
        held += line
        if line.endswith("\\"):
            held += "\n"
            continue
        if held.strip() and not held.lstrip().startswith("#"):
            yield held
        held = ""


def program(statement: str) -> str:
    """The program that a command runs, ignoring `sudo` and variable assignments."""
    words = [word for word in statement.split() if word != "sudo" and not re.match(r"\w+=", word)]
    return words[0] if words else ""


def fresh_data(root: Path) -> None:
    """Recreates the folder `/data` with `orders` as Parquet and nothing else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(root / "data", ignore_errors=True)
    (root / "data" / "tmp").mkdir(parents=True)
    orders = pa.table({"id": ["order-1", "order-2"], "shop": ["shop-7", "shop-3"], "amount": [12.5, 40.0]})
    pq.write_table(orders, root / "data" / "orders")
