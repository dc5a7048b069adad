"""Fills the pages in `docs/format/`: tables of the layouts in `storage_core/formats`, hexdumps of golden files.

`python -m tools.format_pages` (or `make pages`) rewrites the text between two marks and nothing else;
`tests/test_format_pages.py` compares.

    <!-- table: rocketmq.message.HEADER -->      the layout `HEADER` of storage_core/formats/rocketmq/message.py
    <!-- hexdump: rocketmq record -->            a dump of tools/dumps
    <!-- end -->
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

from storage_core import formats
from storage_core.formats.layout import Struct
from tools.dumps import rabbitmq, rocketmq

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "format"
DUMPS = {**rocketmq.DUMPS, **rabbitmq.DUMPS}
_MARKED = re.compile(r"<!-- (table|hexdump): (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """A page with the text between its marks regenerated. Raises KeyError for a mark with an unknown name."""
    return _MARKED.sub(
        lambda found: f"<!-- {found[1]}: {found[2]} -->\n\n{FILL[found[1]](found[2])}\n\n<!-- end -->", text
    )


def table(name: str) -> str:
    """A table of the fields of a layout, which is identified by its module and its own name."""
    module, layout = name.rsplit(".", 1)
    declared: Struct = vars(importlib.import_module(f"{formats.__name__}.{module}"))[layout]
    rows = [f"| {f.offset} | {f.width} | `{f.disk}` | `{f.name}` | {f.meaning} |" for f in declared.fields]
    source = f"storage_core/formats/{module.replace('.', '/')}.py"
    head = ["| offset | width | type | field | meaning |", "|---|---|---|---|---|"]
    return "\n".join([f"{declared.size} bytes, `{layout}` in `{source}`:", "", *head, *rows])


def hexdump(name: str) -> str:
    """A dump and the golden file that it shows."""
    dump = DUMPS[name]()
    source = dump.source.replace(": ", "`,\n`")
    return f"`{source}`:\n\n```text\n{dump.text()}\n```"


def layouts() -> list[str]:
    """The names of all declared layouts, as the marks spell them."""
    found = []
    for module in pkgutil.walk_packages(formats.__path__, formats.__name__ + "."):
        loaded = importlib.import_module(module.name)
        short = module.name.removeprefix(formats.__name__ + ".")
        found += [f"{short}.{name}" for name in assigned(loaded) if isinstance(vars(loaded)[name], Struct)]
    return sorted(found)


def assigned(module: object) -> list[str]:
    """Names that a module assigns at its top level, in order: those that it declares rather than imports."""
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:  # type: ignore[arg-type]  # a module, as importlib returns it
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in dict.fromkeys(names) if not name.startswith("__")]


def marks(text: str, kind: str) -> list[str]:
    """The names in the marks of one kind, in order."""
    return [found[2] for found in _MARKED.finditer(text) if found[1] == kind]


FILL = {"table": table, "hexdump": hexdump}


def main() -> None:
    """Rewrites the pages."""
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text()
        path.write_text(page(text))
        print(f"docs/format/{path.name}: {len(marks(text, 'table'))} tables, {len(marks(text, 'hexdump'))} hexdumps")


if __name__ == "__main__":
    main()
