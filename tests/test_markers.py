"""Which tests belong to which run: tests that sample are marked, so that one run executes them in full; tests that
start a JVM declare it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.long_modules import LONG
from tests.support.two_processes import share

TESTS = Path(__file__).resolve().parent
SAMPLES = "tests.support.sampling"


def modules() -> dict[str, str]:
    """The text of each test module, except those of tests/real and this one."""
    paths = sorted(path for path in TESTS.rglob("test_*.py") if "real" not in path.parts and path != Path(__file__))
    return {str(path.relative_to(TESTS)): path.read_text() for path in paths}


def test_what_samples_is_marked() -> None:
    """Modules that take their steps from a sampling helper count too."""
    helpers = [path.stem for path in (TESTS / "support").glob("*.py") if SAMPLES in path.read_text()]
    steps = re.compile(rf"from {SAMPLES} import|from tests\.support\.(?:{'|'.join(helpers)}) import[^)]*?\bSTEPS\b")
    texts = modules()
    sampling = {name for name, text in texts.items() if steps.search(text)}
    marked = {name for name, text in texts.items() if "\npytestmark = pytest.mark.sampled\n" in text}
    assert len(sampling) >= 8
    assert sampling == marked


def test_long_modules_exist() -> None:
    assert [name for name in LONG if not (TESTS.parent / name).is_file()] == []


def test_all_that_use_the_session_share_a_process(request: pytest.FixtureRequest) -> None:
    """The process is chosen by the module's text, before its fixtures are known."""
    using = [item for item in request.session.items if "spark" in getattr(item, "fixturenames", ())]
    assert {share(item.nodeid.partition("::")[0]) for item in using} <= {"spark"}
    assert share("tests/connector/test_find.py") == "spark"
    assert share("tests/rocketmq/test_commit.py") != share("tests/rocketmq/test_redo.py")


def test_whoever_starts_a_java_asks_for_it() -> None:
    """A session comes from the fixture `spark`; a process with a session of its own needs the fixture `java`."""
    own = {name for name, text in modules().items() if re.search(r"SparkSession\s*\.builder|hard_driver\"", text)}
    assert own == {
        "connector/test_spark_worker.py", "connector/test_spark_hard_times.py", "test_packaging.py",
    }  # fmt: skip
    for name in own:
        assert re.search(r'usefixtures\("java"\)|\bjava: str', (TESTS / name).read_text()), name
