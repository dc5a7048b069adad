"""The notebook in `examples/` is stored with its outputs, for readers on the web. tests/real runs it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "dead_broker.ipynb"


def test_the_notebook_keeps_what_it_printed() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 8
    shown = 0
    for cell in cells:
        code = "".join(cell["source"])
        ast.parse("\n".join(line for line in code.splitlines() if not line.startswith("%")))
        assert not any(output["output_type"] == "error" for output in cell["outputs"]), code
        if code.endswith(".toPandas()"):
            shown += 1
            assert any("text/html" in output.get("data", {}) for output in cell["outputs"]), code
    assert shown == 4
    assert 10_000 < NOTEBOOK.stat().st_size < 200_000
