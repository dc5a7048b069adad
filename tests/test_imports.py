"""What tests may import from each other: helpers have their own modules, and quick tests need no real system."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
NEEDS_MORE = ("tests.real", "benchmarks")
"""Packages that need the real systems or plotting; only their own tests import them."""


def imported(source: str) -> Iterator[str]:
    """Every imported dotted name, `from a import b` as `a.b`, also in programs that a test runs from a string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nfrom tests" in node.value:
            for line in node.value.splitlines():
                if match := re.match(r"from (tests\S+) import (\w+)", line):
                    yield ".".join(match.groups())


def breaks(path: str, source: str) -> list[str]:
    """The forbidden imports of the test file `path`, which is relative to tests/."""
    own = path.partition("/")[0]
    found = []
    for name in imported(source):
        if any(part.startswith(("test_", "conftest")) for part in name.split(".")[1:-1]):
            found.append(f"{path} imports {name}: helpers belong to tests/support")
        if own not in ("real", "benchmarks") and name.startswith(NEEDS_MORE):
            found.append(f"{path} imports {name}")
    return found


def test_no_test_module_is_imported_and_quick_tests_need_no_real_system() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    assert len(paths) > 100
    assert [line for path in paths for line in breaks(str(path.relative_to(TESTS)), path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.rocketmq.test_commit import rows",
        "import tests.rocketmq.test_commit.rows",
        "from tests.connector.conftest import load",
        "from tests.real import oracle",
        "def late():\n    import benchmarks.make_store",
        "CODE = '''\nfrom {}.rocketmq.test_commit import a\n'''".format("tests"),
    ],
)
def test_the_rule_would_notice(source: str) -> None:
    assert breaks("rocketmq/test_new.py", source) != []
    assert breaks("rocketmq/test_new.py", "from tests.support.rocketmq_writes import rows") == []
