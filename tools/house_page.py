"""Writes the rooms of `docs/architecture.md`: every module with the first sentence of what it says of itself.

`python -m tools.house_page` (or `make pages`); `tests/test_house_page.py` compares. What stands above the mark in the
page is written by hand.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
MARK = "<!-- From here on written by `make pages` out of the modules' own first sentences. -->"

ROOMS = (
    ("The door", "storage_core", False),
    ("Room 1: formats, bytes to arrays", "storage_core/formats", False),
    ("Room 1: RocketMQ's formats", "storage_core/formats/rocketmq", True),
    ("Room 1: RabbitMQ's formats", "storage_core/formats/rabbitmq", True),
    ("Room 2: files, bytes to disk", "storage_core/files", True),
    ("Room 3a: the RocketMQ engine", "storage_core/rocketmq", True),
    ("Room 3b: the RabbitMQ engine", "storage_core/rabbitmq", False),
    ("Room 3b: its paging queue", "storage_core/rabbitmq/paging", True),
    ("Room 4: the Spark connector", "connector", True),
    ("Room 5: the command", "command_line", True),
    ("What Spark finds by name", "pyspark_mqstore", True),
)


def rooms() -> str:
    """The generated part of the page."""
    parts = []
    for title, folder, deep in ROOMS:
        modules = sorted((ROOT / folder).glob("**/*.py" if deep else "*.py"))
        rows = [f"| `{path.relative_to(ROOT / folder)}` | {said(path)} |" for path in modules if said(path)]
        if rows:
            head = [f"### {title}", "", f"`{folder}/`", "", "| file | what it is |", "|---|---|"]
            parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts) + "\n"


def said(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def page() -> str:
    """The whole page as it should be."""
    written = PAGE.read_text().split(MARK)[0]
    return f"{written}{MARK}\n\n{rooms()}"


if __name__ == "__main__":
    PAGE.write_text(page())
