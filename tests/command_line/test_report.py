"""`mqstore report`: one self-contained page that agrees with `ls`, `topics`, `offsets` and `cat`."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from command_line.facts import store_info
from command_line.output.progress import ProgressLine
from command_line.report import charts, facts
from command_line.report.facts import OverTime, StoreFacts, largest_size
from command_line.selection import selection
from command_line.stores import opened
from storage_core import open_store
from tests.command_line.calls import lines, run
from tests.golden.archive import fingerprint, unpack

EMPTY, CLOSED = {"meta", "input"}, {"rect", "line"}


class Page(HTMLParser):
    """A well-formed page: its cells by table, its texts, and the resources that it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.loaded: list[str] = []
        self.texts: list[str] = []
        self._title = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{name}={value}" for name, value in attrs if name in ("src", "href") and value]
        if tag == "tr":
            self.tables[self._title].append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in CLOSED

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self._title = data.strip()
            self.tables.setdefault(self._title, [])
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[self._title][-1][-1] += data


def report(store: Path, target: Path) -> Page:
    before = fingerprint(store)
    done = run("report", store, "-o", target, "--force")
    assert f"{target} written" in done.stderr
    assert fingerprint(store) == before
    text = target.read_text()
    assert not re.search(r"https?://|@import|url\(", text)
    page = Page(text)
    assert all(each.startswith("href=#") for each in page.loaded)
    return page


def found(store: Path) -> StoreFacts:
    with opened(str(store)) as stores:
        (chosen,) = selection({}).chosen(stores)
        return facts.gathered(chosen, store_info(chosen.named), ProgressLine())


def test_a_page_about_a_rocketmq_store(rocket: Path, tmp_path: Path) -> None:
    page = report(rocket, tmp_path / "r.html")
    queues = lines(run("ls", rocket, "--json"))
    assert [row[:3] for row in page.tables["Queues"][1:]] == [
        [row["topic"], f"{row['queueId']:,}", f"{row['messages']:,}"] for row in queues
    ]
    groups = {(row[0], row[1]): row[4] for row in page.tables["Consumer groups"][1:]}
    assert groups["analytics", "orders"] == "4,685"
    assert len(page.tables["Newest dead letters"]) == 17
    assert page.tables["Newest dead letters"][1][2] == "payments"
    assert [row[:3] for row in page.tables["Delayed messages"][1:]] == [["1", "11", "2026-11-20 21:40:25"]]
    assert len(page.tables["Files"]) > 10
    assert {"20,048", "5.6 MiB", "14,693", "stopped cleanly"} <= set(page.texts)
    bodies = lines(run("cat", rocket, "--topic", "%DLQ%mailer", "--columns", "body"))
    assert not any(row["body"] in "".join(page.texts) for row in bodies)


def test_what_is_counted_is_what_is_there(rocket: Path) -> None:
    data = found(rocket)
    rows = lines(run("cat", rocket, "--columns", "topic,storeTimestamp,size"))
    over = data.over_time
    assert over is not None
    times = np.array([row["storeTimestamp"].rstrip("Z") for row in rows], "M8[ms]").astype(np.int64)
    edges = over.start_ms + over.bin_ms * np.arange(over.counts.shape[1] + 1)
    assert over.start_ms == times.min()
    assert over.counts.sum(axis=0).tolist() == np.histogram(times, edges)[0].tolist()
    totals = dict(zip(over.names, over.counts.sum(axis=1).tolist(), strict=True))
    by_topic = Counter(row["topic"] for row in rows)
    assert {name: by_topic[name] for name in ("orders", "payments", "shipments")}.items() <= totals.items()
    assert sum(totals.values()) == len(rows)
    for step, count in data.sizes.items():
        assert count == sum(largest_size(step - 1) < row["size"] <= largest_size(step) for row in rows)
    assert sum(data.sizes.values()) == len(rows)


def test_a_page_about_a_rabbitmq_store(rabbit: Path, node: Path, tmp_path: Path) -> None:
    page = report(rabbit, tmp_path / "r.html")
    assert {row[0]: row[2] for row in page.tables["Queues"][1:]}["m.requeue"] == "27"
    both = report(node, tmp_path / "n.html")
    assert len(both.loaded) == 4
    assert "virtual host other" in "".join(both.texts)


def test_a_damaged_store_is_reported(damaged: Path, tmp_path: Path) -> None:
    page = report(damaged, tmp_path / "d.html")
    text = "".join(page.texts)
    assert "not stopped cleanly" in text
    assert "≤ 127 KiB" in text
    assert "--scan log" in text
    findings = lines(run("verify", damaged, "--json", code=1))
    assert [(row[0], row[-1]) for row in page.tables["Damage"][1:]] == [(f["file"], f["effect"]) for f in findings]
    assert sum(found(damaged).sizes.values()) == 68


def test_names_are_text_and_times_are_properties(tmp_path: Path) -> None:
    """A queue name is arbitrary text and must be escaped."""
    name = "<script>alert('x')</script>&\""
    with open_store(str(tmp_path / "store"), "rabbitmq") as store:
        times = pa.array([1_700_000_000_000_000 + n * 10**9 for n in range(5)], pa.timestamp("us", "UTC"))
        store.append(pa.table({"queue": [name] * 5, "body": ["b"] * 5, "timestamp": times}))
    page = report(tmp_path / "store", tmp_path / "r.html")
    assert page.tables["Queues"][1][0] == name
    assert "Messages over time" in page.tables
    assert (tmp_path / "r.html").read_text().count("<script>") == 1


def test_an_empty_store(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store"), "rabbitmq") as store:
        store.append(pa.table({"queue": ["q"], "body": ["b"]}))
    data = found(tmp_path / "store")
    assert (data.over_time, data.sizes) == (None, {0: 1})
    report(tmp_path / "store", tmp_path / "r.html")


def test_a_page_is_not_written_over_another_file(rabbit: Path, tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("mine")
    assert "already exists" in run("report", rabbit, "-o", tmp_path / "r.html", code=2).stderr
    assert (tmp_path / "r.html").read_text() == "mine"
    assert "there is no directory" in run("report", rabbit, "-o", tmp_path / "no" / "r.html", code=2).stderr


@pytest.mark.parametrize("span_ms", [1, 70, 59_000, 7_200_000, 86_400_000 * 3, 86_400_000 * 4000])
def test_the_time_axis_is_true(span_ms: int) -> None:
    start = 1_700_000_000_123
    svg = charts.over_time(OverTime(start, span_ms / 60, ("a",), np.ones((1, 60), np.int64)))
    ticks = re.findall(r'class="tick" x1="([\d.]+)"', svg)
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([^<]+)</text>', svg)
    assert len(ticks) <= charts.MOST_TICKS + 1
    days = {x: text for x, text in labels if len(text) == 10}
    for x, text in labels:
        if len(text) != 10 and x in days:
            moment = int(np.datetime64(f"{days[x]}T{text}", "ms").astype(np.int64))
            share = (float(x) - charts.LEFT) / (charts.WIDTH - charts.LEFT - charts.RIGHT)
            assert share * span_ms + start == pytest.approx(moment, abs=span_ms / 500)


def test_scales_are_round() -> None:
    assert [charts._nice(most) for most in (0, 1, 2, 3, 5, 33, 1078, 10**6)] == [1, 1, 2, 4, 8, 40, 1200, 1_200_000]


def test_a_store_with_delays_but_no_note_of_them(tmp_path: Path) -> None:
    store = unpack("delay-4.9.3", tmp_path)
    rows = found(store).delayed
    assert sum(row["waiting"] for row in rows) == sum(row["messages"] for row in rows) == 99
    # Levels 1, 2, 3, 5 and 18 are 1, 5, 10 and 60 seconds and 2 hours.
    delays = {1: 1_000, 2: 5_000, 3: 10_000, 5: 60_000, 18: 7_200_000}
    assert {row["level"] for row in rows} == delays.keys()
    for row in rows:
        for due, stored in ((row["due"], row["since"]), (row["lastDue"], row["last"])):
            assert np.datetime64(due[:-1]) - np.datetime64(stored[:-1]) == np.timedelta64(delays[row["level"]], "ms")
    report(store, tmp_path / "delayed.html")
    assert "first of them due" in (tmp_path / "delayed.html").read_text()
