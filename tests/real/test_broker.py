"""Stores that mqstore writes, served by a real broker of 4.9.3 and 5.3.3 to a real consumer: every message once, in
order. A real producer adds more, the broker stops, mqstore reads everything and appends, and the broker serves that
too.

Also starts a broker at three steps of a commit. `MQSTORE_BROKERS` sets the number of seeds (1; `make test-real-full`
runs 12, and the three steps with both versions), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage_core.rocketmq.write.commit_point import GUARD
from tests.faults import Died, stopped_at
from tests.real.appended import append
from tests.real.broker import Broker, BrokerError
from tests.real.written_rows import TOPICS, geometry, row_problems
from tests.reference.served import AS_BROKER, Row, in_partitions, place, read
from tests.support.rocketmq_copies import write_options
from tests.support.rocketmq_writes import NEW_ROWS, bodies, made_store, rows, write

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_BROKERS", "1")))

# A retry topic belongs to its group: another consumer cannot subscribe to it.
CONSUMED = tuple(topic for topic in TOPICS if not topic.startswith("%"))
FRESH = "made-by-the-broker"
PRODUCED = 40
SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200, "maxHashSlotNum": 11, "maxIndexNum": 40}
ADDED_BY_CLIENTS = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}


def story(version: str, seed: int, work: Path) -> list[str]:
    """Runs the history of one store with a broker of one version; returns what went wrong."""
    r = random.Random(f"{seed} {version}")
    sizes = geometry(r)
    directory, rows = work / version / "store", []
    while not rows:
        rows = append(directory, r, sizes["mappedFileSizeCommitLog"], CONSUMED, **write_options(sizes))
    for _ in range(2):
        rows += append(directory, r, sizes["mappedFileSizeCommitLog"], CONSUMED)
    lines = row_problems(rows, directory)
    with Broker(version, directory, sizes) as broker:
        lines += delivered(broker, "first", directory, len(rows))
        lines += key_answers(broker, directory, rows, r)
        produce(broker, r, sorted({row["topic"] for row in rows}))
    if (directory / "abort").exists():
        lines.append("the broker did not stop cleanly")
    found = read(directory, in_partitions(3, **AS_BROKER))
    if len(found) != len(rows) + PRODUCED:
        lines.append(f"{len(rows)} written, {PRODUCED} produced, {len(found)} read")
    more = append(directory, r, sizes["mappedFileSizeCommitLog"], (*CONSUMED, FRESH))
    broker = Broker(version, directory, sizes)
    try:
        lines += delivered(broker, "second", directory, len(rows) + PRODUCED + len(more))
        lines += key_answers(broker, directory, more, r)
    finally:
        broker.kill()
    return [f"{version} seed {seed} {sizes}: {line}" for line in lines]


def produce(broker: Broker, r: random.Random, topics: list[str]) -> None:
    """Lets a real producer add messages to the existing queues and to a new topic."""
    messages: list[dict[str, Any]] = [
        {
            "topic": r.choice((*topics, FRESH)),
            "body": f"produced {number}",
            "keys": f"produced-{number}",
            "tags": "made",
        }
        for number in range(PRODUCED)
    ]
    results = broker.ask(op="produce", group="producers", messages=messages)["results"]
    assert [each["status"] for each in results] == ["SEND_OK"] * PRODUCED


def delivered(broker: Broker, group: str, directory: Path, count: int) -> list[str]:
    """The differences between what a new group's consumer receives and what mqstore reads in the same store."""
    rows = {place(row): row for row in read(directory, in_partitions(1, **AS_BROKER))}
    got = broker.consume(group, sorted({topic for topic, _, _ in rows}))
    places = [(m["topic"], m["queueId"], m["queueOffset"]) for m in got]
    lines = [f"{group}: {at} was received {times} times" for at, times in Counter(places).items() if times > 1]
    lines += [f"{group}: {at} was not received" for at in rows.keys() - set(places)]
    if len(rows) != count:
        lines.append(f"{group}: mqstore reads {len(rows)} messages, not {count}")
    last: dict[tuple[str, int], int] = {}
    for message, at in zip(got, places, strict=True):
        if at[2] != last.get(at[:2], -1) + 1:
            lines.append(f"{group}: {at} was received behind offset {last.get(at[:2])}")
        last[at[:2]] = at[2]
        lines += [f"{group}: {line}" for line in _different(message, rows.get(at))]
    return lines[:10]


def _different(message: dict[str, Any], row: Row | None) -> list[str]:
    if row is None:
        return [f"{message['topic']} {message['queueId']} {message['queueOffset']} was received and is not read"]
    stored = dict(row["properties"])
    seen = {
        name: value for name, value in message["properties"].items() if name not in ADDED_BY_CLIENTS - stored.keys()
    }
    wanted = {
        "body": row["body"], "properties": stored, "keys": row["key"], "tags": row["tags"], "flag": row["flag"],
        "msgId": row["msgId"], "offsetMsgId": row["offsetMsgId"], "physicalOffset": row["physicalOffset"],
        "size": row["size"], "bornTimestamp": row["bornTimestamp"], "storeTimestamp": row["storeTimestamp"],
        "storeHost": row["storeHost"], "sysFlag": row["sysFlag"], "bodyCrc": row["bodyCrc"],
        "preparedTransactionOffset": row["preparedTransactionOffset"],
    }  # fmt: skip
    expected = message | {"properties": seen, "body": base64.b64decode(message["body64"])}
    return [f"{place(row)}: {name} is {expected[name]!r:.200}, in the store {value!r:.200}"
            for name, value in wanted.items() if expected[name] != value]  # fmt: skip


def key_answers(broker: Broker, directory: Path, rows: list[dict[str, Any]], r: random.Random) -> list[str]:
    """Keys that a real client's query finds at other addresses than mqstore. A client returns at most 64 messages."""
    lines, keys = [], sorted({(row["topic"], word) for row in rows for word in (row.get("key") or "").split()})
    for topic, word in r.sample(keys, min(len(keys), 8)):
        answer = broker.ask(op="query-key", topic=topic, key=word, max=64, begin=0, end=(1 << 63) - 1)
        # A word that occurs twice in KEYS is in the index twice, and a client gets its message twice.
        theirs = sorted({message["physicalOffset"] for message in answer["msgs"]})
        found = read(directory, in_partitions(1, topics=(topic,), keys=(word,), **AS_BROKER))
        mine = sorted(row["physicalOffset"] for row in found)
        if len(answer["msgs"]) < 60 and theirs != mine:
            lines.append(f"key {topic}#{word}: a client finds {theirs}, mqstore {mine}")
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_serves_what_mqstore_wrote_and_goes_on(seed: int, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        stories = [both.submit(story, version, seed, tmp_path) for version in ("493", "533")]
        problems = [line for each in stories for line in each.result()]
    assert not problems, "\n".join(problems)


PATIENCE_MS = 12_000
"""A client whose pull fails on a busy machine retries only after seconds, so a queue's messages may arrive late."""


def at_a_stop(version: str, directory: Path, expected: int | None) -> list[str]:
    """What a broker did wrong with the store of a writer that died. It must serve `expected` messages, or refuse the
    store if that is None.
    """
    where = f"{version} {directory.parent.name}"
    try:
        broker = Broker(version, directory, SMALL)
    except BrokerError as refusal:
        refused = (directory / "commitlog" / GUARD).exists() and expected is None
        lines = [] if refused else [f"{where}: {refusal}"]
        taken = 0
    else:
        with broker:
            got = broker.consume("stopped", ["orders", "audit", "fresh"], PATIENCE_MS)
            broker.ask(op="produce", messages=[{"topic": "orders", "body": f"taken {n}"} for n in range(3)])
        lines = [] if len(got) == expected else [f"{where}: {len(got)} messages received, not {expected}"]
        taken = 3
    write(directory, rows(1, 900))
    there = len(bodies(directory))
    wanted = 47 + taken + 1 + (0 if expected == 47 else NEW_ROWS.num_rows)
    return lines if there == wanted else [*lines, f"{where}: {there} messages in the end, not {wanted}"]


def test_a_broker_at_steps_of_a_commit_refuses_or_serves_whole_or_absent(tmp_path: Path) -> None:
    original = made_store("own", tmp_path / "original")
    with stopped_at(None) as clock:
        write(shutil.copytree(original, tmp_path / "counted" / "store"), NEW_ROWS)
    guards = [number for number, call in enumerate(clock.log) if GUARD in call]
    # Before the guard is created; in the middle of publishing; after its removal.
    steps = {guards[0] - 1: 47, (guards[0] + guards[-1]) // 2: None, guards[-1] + 1: 47 + NEW_ROWS.num_rows}
    waiting = []
    for version in ("493", "533") if len(SEEDS) > 1 else ("533",):
        for last, expected in steps.items():
            directory = tmp_path / f"{version} stopped at {last}" / "store"
            shutil.copytree(original, directory)
            with pytest.raises(Died), stopped_at(last):
                write(directory, NEW_ROWS)
            waiting.append((version, directory, expected))
    with ThreadPoolExecutor(3) as several:
        futures = [several.submit(at_a_stop, *each) for each in waiting]
        problems = [line for each in futures for line in each.result()]
    assert not problems, "\n".join(problems)
