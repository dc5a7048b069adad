"""Writes `docs/format/`: every layout declared under `storage_core/formats`, as tables, one page for each system.

`python -m tools.format_pages` (or `make pages`); `tests/test_format_pages.py` compares. The words and tables come from
the modules: a page is never edited.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

from storage_core import formats
from storage_core.formats.layout import Struct

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "format"
TITLES = {"rocketmq": "Apache RocketMQ: files on disk", "rabbitmq": "RabbitMQ: files on disk"}
NOTICE = "<!-- Written by `make pages` from the layouts in storage_core/formats. Change those, not this. -->"
CONVENTIONS = "Numbers are big-endian. Offset and width are in bytes; `i` is signed, `u` unsigned, `V` raw bytes."


def pages() -> dict[str, str]:
    """Text of each page by its file name."""
    sections: dict[str, list[str]] = {system: [] for system in TITLES}
    for module in sorted(pkgutil.walk_packages(formats.__path__, formats.__name__ + "."), key=lambda found: found.name):
        system = module.name.split(".")[2]
        if system in sections:
            sections[system] += section(module.name)
    return {
        f"{system}.md": "\n\n".join([f"# {TITLES[system]}", NOTICE, CONVENTIONS, *parts]) + "\n"
        for system, parts in sections.items()
        if parts
    }


def section(module_name: str) -> list[str]:
    """A module's part of the page: what it says of itself, then its layouts; nothing for a module without any."""
    module = importlib.import_module(module_name)
    layouts = [(name, vars(module)[name]) for name in assigned(inspect.getsource(module))]
    tables = [part for name, value in layouts if isinstance(value, Struct) for part in table(name, value)]
    if not tables:
        return []
    return [f"## `{module_name.rsplit('.', 1)[1]}`", inspect.cleandoc(module.__doc__ or ""), *tables]


def table(name: str, layout: Struct) -> list[str]:
    """A layout's heading and its fields with their types on disk."""
    rows = [f"| {f.offset} | {f.width} | `{f.disk}` | `{f.name}` | {f.meaning} |" for f in layout.fields]
    head = ["| offset | width | type | field | meaning |", "|---|---|---|---|---|"]
    title = layout.name[0].upper() + layout.name[1:]
    return [f"### {title}", f"`{name}`, {layout.size} bytes.", "\n".join([*head, *rows])]


def assigned(source: str) -> list[str]:
    """Names that a module assigns at its top level, in order: what it declares rather than imports."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in dict.fromkeys(names) if not name.startswith("__")]


def main() -> None:
    """Writes the pages and removes those that no layout stands behind any more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
        print(f"docs/format/{name}: {text.count('### ')} layouts")


if __name__ == "__main__":
    main()
