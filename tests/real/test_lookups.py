"""Lookups by key and by time compared with the real stores: random stores with tiny hash tables, full index files and
keys that collide.

`MQSTORE_LOOKUPS` sets the number of stores (100 in `make test-real-full`), `MQSTORE_SEED` the first seed.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from storage_core.store import ScanRequest
from tests.real.oracle import Oracle
from tests.reference.served import AS_BROKER, Row, place, read

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_LOOKUPS", "3")))

WORDS = ("AaAa", "BBBB", "AaBB", "BBAa", "k", "order-1", "order-2", "AaAaAa", "BBBBBB", "日本", "x#y", "jllgvmc")
TOPICS = ("T", "orders", "T#x", "%RETRY%g")
FIRST_MS, LAST = 1_700_000_000_000, (1 << 63) - 1
COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "keys", "properties", "storeTimestamp")


@dataclass
class Answers:
    """The real store's answers: keys with their offsets, and times with theirs."""

    keys: list[tuple[str, str, list[int]]] = field(default_factory=list)
    times: list[tuple[str, int, int, int]] = field(default_factory=list)


def made(seed: int, directory: Path) -> Answers:
    r = random.Random(seed)
    version = r.choice(("493", "533"))
    settings = {
        "mappedFileSizeCommitLog": r.choice((4096, 16384)), "mappedFileSizeConsumeQueue": r.choice((100, 400, 2000)),
        "maxHashSlotNum": r.choice((1, 2, 3, 7, 50)), "maxIndexNum": r.choice((30, 60, 400)),
    }  # fmt: skip
    directory.mkdir(parents=True)
    answers, now = Answers(), FIRST_MS
    with Oracle(version, directory, settings, timeout_s=300) as oracle:
        for number in range(r.choice((20, 80, 160))):
            now += r.choice((0, 1, 300, 1700, 5000)) if r.random() < 0.95 else -3000
            oracle.ask(op="clock", ms=now)
            oracle.ask(op="put", **message(r))
            if number % 4 == 3:
                # Index files created in the same millisecond would get the same name.
                oracle.ask(op="wait")
                oracle.ask(op="sleep", ms=3)
        oracle.ask(op="wait")
        for topic in TOPICS:
            for word in (*WORDS, "no-such-key"):
                answer = oracle.ask(op="query", topic=topic, key=word, max=64, begin=0, end=LAST)
                answers.keys.append((topic, word, found_at(answer)))
        ask_times(oracle, version, r, now, answers)
    return answers


def ask_times(oracle: Oracle, version: str, r: random.Random, now: int, answers: Answers) -> None:
    if version != "533":
        return
    for topic in TOPICS:
        for queue_id in (0, 1):
            for _ in range(8):
                at = r.randrange(FIRST_MS - 2000, now + 2000)
                answer = oracle.ask(op="bytime", topic=topic, queueId=queue_id, ts=at, boundary="LOWER")
                answers.times.append((topic, queue_id, at, answer["offset"]))


def found_at(answer: dict[str, Any]) -> list[int]:
    return [each["phy"] for each in answer["msgs"]]


def message(r: random.Random) -> dict[str, Any]:
    props = {"a": "1"}
    if r.random() < 0.85:
        props["KEYS"] = " ".join(r.choice(WORDS) for _ in range(r.choice((1, 1, 2, 3))))
    if r.random() < 0.6:
        props["UNIQ_KEY"] = r.choice((*WORDS, f"U{r.randrange(30)}"))
    return {
        "topic": r.choice(TOPICS), "queueId": r.randrange(2), "sysFlag": r.choice((0, 0, 0, 8, 4, 12)), "props": props,
        "body64": base64.b64encode(r.randbytes(r.randrange(80))).decode(), "bornTs": FIRST_MS,
    }  # fmt: skip


def has(row: Row, topic: str, word: str) -> bool:
    return row["topic"] == topic and (word in (row["keys"] or ()) or dict(row["properties"]).get("UNIQ_KEY") == word)


@pytest.mark.parametrize("seed", SEEDS)
def test_lookups_equal_the_real_ones(seed: int, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    answers = made(seed, directory)
    rows = read(directory, ScanRequest(columns=COLUMNS, **AS_BROKER))
    by_place = {row["physicalOffset"]: row for row in rows}
    for topic, word, offsets in answers.keys:
        every = [row for row in rows if has(row, topic, word)]
        # A broker compares only hashes, indexes messages that no queue serves, and stops at 64.
        real = {at for at in offsets if at in by_place and has(by_place[at], topic, word)}
        mine = [*looked_up(directory, topic, keys=(word,)), *looked_up(directory, topic, message_ids=(word,))]
        unique = {row["physicalOffset"]: row for row in mine}
        assert sorted(unique.values(), key=place) == sorted(every, key=place), (topic, word)
        assert real <= unique.keys(), (topic, word)
        if len(offsets) < 64:
            assert real == unique.keys(), (topic, word)
    for topic, queue_id, at, offset in answers.times:
        queue = [row["queueOffset"] for row in rows if (row["topic"], row["queueId"]) == (topic, queue_id)]
        if queue:
            request = ScanRequest(columns=("queueOffset",), assign=((topic, queue_id),), start_ms=at, **AS_BROKER)
            got = sorted(row["queueOffset"] for row in read(directory, request))
            assert got == [each for each in queue if each >= offset], (topic, queue_id, at)
    shutil.rmtree(tmp_path)


def looked_up(directory: Path, topic: str, **what: tuple[str, ...]) -> list[Row]:
    """The rows of one topic from a lookup in all topics: hashes of several topics share their chains."""
    rows = read(directory, ScanRequest(columns=COLUMNS, **what, **AS_BROKER))
    return [row for row in rows if row["topic"] == topic]
