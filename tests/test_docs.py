"""The documentation matches the code: options, errors, links, make targets."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import mqstore
from connector import kafka_layout
from connector.schema import to_spark
from storage_core import errors
from storage_core.option_table import OPTIONS
from storage_core.options.option import READ, WRITE
from storage_core.rabbitmq import schema as rabbitmq
from storage_core.rabbitmq import views as rabbitmq_views
from storage_core.rocketmq.schema import CORRUPTION, ENTRY_COLUMNS, NATIVE
from storage_core.rocketmq.views.views import view_schema
from storage_core.rocketmq.write.input_rows import KAFKA_NAMES
from storage_core.rocketmq.write.options import NAMES as WRITE_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row whose first cell is a name."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_options_are_those_of_the_code_with_their_defaults() -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    documented = {}
    for cells in rows(text.split("## Columns")[0]):
        names = re.findall(r"`(\w+)`", cells[0])
        documented[names[0]] = (tuple(names[1:]), cells[2].strip("`"))
    expected = {}
    spoken = {"topic": "all", "columns": "all", "minPartitions": "the driver's cores"}
    for option in OPTIONS:
        if option.use == READ:
            expected[option.name] = (option.aliases, option.default or spoken.get(option.name, "–"))
    assert documented == expected


def test_the_options_of_a_write_are_those_of_the_code_with_their_defaults() -> None:
    section = (ROOT / "docs" / "write.md").read_text().split("## Options")[1].split("## ")[0]
    documented = {cells[0].strip("`"): cells[2].strip("`") for cells in rows(section)}
    expected = {option.name: option.default or "–" for option in OPTIONS if option.use == WRITE}
    assert documented == {name: default for name, default in expected.items() if name in WRITE_NAMES}


def test_the_columns_of_a_write_are_those_of_the_code() -> None:
    section = (ROOT / "docs" / "write.md").read_text().split("## Columns")[1].split("## ")[0]
    documented = {name: cells[1].strip("`") for cells in rows(section) for name in re.findall(r"`(\w+)`", cells[0])}
    assert {kafka: name for name, kafka in documented.items() if kafka} == KAFKA_NAMES
    assert documented.keys() <= set(NATIVE.names)


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]
    assert [page for page in pages if f": {page}" not in menu] == []


def test_the_columns_of_the_kafka_layout() -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    section = text.split("### `layout=kafka`")[1].split("## Views")[0]
    assert [cells[0].strip("`") for cells in rows(section)] == kafka_layout.SCHEMA.names


def test_the_columns_and_their_types() -> None:
    section = (ROOT / "docs" / "options.md").read_text().split("## Columns")[1].split("### ")[0]
    schema = to_spark(NATIVE.append(CORRUPTION))
    spoken = {"bigint": "long"}
    names = {field.name: field.dataType.simpleString() for field in schema.fields}
    assert {cells[0].strip("`"): cells[1] for cells in rows(section)} == {
        name: spoken.get(kind, kind) for name, kind in names.items()
    }
    (fast,) = [line for line in section.splitlines() if "come from the consume queues alone" in line]
    assert set(re.findall(r"`(\w+)`", fast)) == ENTRY_COLUMNS


def test_the_columns_of_rabbitmq_and_their_types() -> None:
    section = (ROOT / "docs" / "rabbitmq.md").read_text().split("## Columns")[1].split("## ")[0]
    spoken = {"bigint": "long"}
    fields = to_spark(rabbitmq.NATIVE.append(rabbitmq.ACKED).append(rabbitmq.CORRUPTION)).fields
    names = {field.name: field.dataType.simpleString() for field in fields}
    assert {cells[0].strip("`"): cells[1] for cells in rows(section)} == {
        name: spoken.get(kind, kind) for name, kind in names.items()
    }


def test_the_columns_of_the_views_of_rabbitmq() -> None:
    section = (ROOT / "docs" / "rabbitmq.md").read_text().split("## Views")[1].split("## ")[0]
    documented = {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[1]) for cells in rows(section)}
    with pytest.raises(errors.OptionError) as caught:
        rabbitmq_views.VIEWS.schema_of("none of them")
    known = str(caught.value).rpartition("messages, ")[2].split(", ")
    assert documented == {name: rabbitmq_views.VIEWS.schema_of(name).names for name in known}


def test_the_columns_of_the_views() -> None:
    section = (ROOT / "docs" / "options.md").read_text().split("## Views")[1]
    documented = {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[1]) for cells in rows(section)}
    with pytest.raises(errors.OptionError) as caught:
        view_schema("none of them")
    known = str(caught.value).split("The views are messages, ")[1].split(", ")
    assert documented == {name: view_schema(name).names for name in known}


def test_every_error_has_its_row() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    documented = {cells[0].strip("`") for cells in rows(text.split("## Damaged")[0])}
    family = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.MqStoreError) and not name.startswith("_")
    }
    assert documented == family - {"MqStoreError"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.is_file() or (anchor and anchor not in anchors(aim.read_text())):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_pages_use_plain_words(page: Path) -> None:
    """No page uses the project's private jargon, except in file names and generated parts."""
    written = re.sub(r"(?s)<!-- table: .*?<!-- end -->", "", page.read_text().split("<!-- From here on written")[0])
    text = re.sub(r"`[^`\n]+`", "", written)
    found = re.findall(r"(?i)\b(?:doors?|rooms?|houses?|judge[sd]?|behind|ordinals?|seen from here)\b", text)
    assert found == []


def test_the_targets_named_exist() -> None:
    known = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?m)(?:^|`)make ([a-z0-9-]+)", page.read_text())}
    assert {"demo", "test", "test-real", "bench", "lint", "clean"} <= known
    assert named <= known


def test_the_changelog_knows_the_version() -> None:
    assert f"## {mqstore.__version__}" in (ROOT / "CHANGELOG.md").read_text()
