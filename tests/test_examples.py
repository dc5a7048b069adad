"""The examples print their usage before Spark starts; the demo prints the code that it runs, and readable tables."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from examples import demo

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "demo")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_without_arguments_an_example_says_how_to_call_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(path), run_name="__main__")
    assert f"\npython examples/{path.name} /" in str(caught.value.code)


def test_the_demo_prints_the_code_that_it_runs() -> None:
    assert demo.code_of(demo.lag) == [
        'offsets = spark.read.format("mqstore").option("view", "offsets").load(store)',
        'sums = offsets.groupBy("group", "topic").agg(F.sum("committed"), F.sum("maxOffset"), F.sum("lag"))',
        'sums.toDF("group", "topic", "committed", "end", "lag").where("lag > 0").orderBy(F.desc("lag"))',
    ]
    for work in (demo.a_table, demo.what_happened, demo.one_order, demo.lag, demo.write, demo.find):
        assert all(len(line) <= 98 for line in demo.code_of(work)), work


def test_the_demos_tables_cut_the_last_column_only(capsys: pytest.CaptureFixture[str]) -> None:
    times = pd.to_datetime(["2026-11-20 21:40:19.050"])
    demo.show(pd.DataFrame({"storeTimestamp": times, "topic": ["orders"], "lag": [4685], "body": [b"x" * 200]}))
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["storeTimestamp", "topic", "lag", "body"]
    assert row.startswith("    2026-11-20 21:40:19.050  orders  4,685  xxx")
    assert row.endswith("…")
    assert len(row) <= 100


def test_the_picture_is_small() -> None:
    picture = EXAMPLES.parent / "docs" / "images" / "messages-over-time.png"
    assert 10_000 < picture.stat().st_size < 200_000
