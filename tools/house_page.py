"""Writes the generated part of `docs/architecture.md`: every module with the first paragraph of its docstring.

Run as `python -m tools.house_page` (or `make pages`); `tests/test_house_page.py` compares. The text above the mark in
the page is written by hand.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
MARK = "<!-- From here on written by `make pages` out of the modules' own first sentences. -->"

# The top-level folders in the order of the page; every folder below one has a part of its own.
FOLDERS = (
    "storage_core", "storage_core/formats", "storage_core/files", "storage_core/rocketmq", "storage_core/rabbitmq",
    "connector", "command_line", "pyspark_mqstore", "mqstore",
)  # fmt: skip


def rooms() -> str:
    """The generated part of the page."""
    parts = []
    for folder in folders():
        rows = [
            f"| `{path.name}` | {summary_of(path)} |"
            for path in sorted((ROOT / folder).glob("*.py"))
            if summary_of(path)
        ]
        if rows:
            parts.append("\n".join([f"### `{folder}/`", "", "| file | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def folders() -> list[str]:
    """The folders of the product that hold modules: each of `FOLDERS`, then those below it that are not named there."""
    found = []
    for folder in FOLDERS:
        below = sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")})
        found += [folder, *(each for each in below if each not in FOLDERS and _owner(each) == folder)]
    return found


def _owner(folder: str) -> str:
    return max((each for each in FOLDERS if folder.startswith(f"{each}/")), key=len)


def summary_of(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def page() -> str:
    """The whole page, with its generated part up to date."""
    written = PAGE.read_text().split(MARK)[0]
    return f"{written}{MARK}\n\n{rooms()}"


if __name__ == "__main__":
    PAGE.write_text(page())
