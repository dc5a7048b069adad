"""The pages in docs/format/ show the layouts that the code uses, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import format_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES = format_pages.pages()


def test_there_is_a_page_for_each_system_with_layouts() -> None:
    assert PAGES
    assert {path.name for path in format_pages.FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_what_the_layouts_say(name: str) -> None:
    assert (format_pages.FOLDER / name).read_text() == PAGES[name], "run `make pages`"


def test_no_layout_is_left_out() -> None:
    declared = sum(
        len(re.findall(r"^[A-Z_0-9]+(?:: [\w.]+)? = struct\($", path.read_text(), re.MULTILINE))
        for path in (ROOT / "storage_core" / "formats").rglob("*.py")
    )
    assert declared == sum(text.count("\n### ") for text in PAGES.values()) > 0


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_row_has_its_five_cells(name: str) -> None:
    rows = [line for line in PAGES[name].splitlines() if line.startswith("|")]
    assert rows
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != 6] == []
