"""Random tables to write into a store, and what a store that holds them must serve."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import open_store
from tests.real.oracle import Oracle, Settings
from tests.reference.rocketmq_model import java_hash
from tests.reference.served import AS_BROKER, in_partitions, read

TOPICS = ("orders", "audit", "T", "%RETRY%group-a", "L" * 127, "a|b_c-d")
WORDS = ("order-%d", "键-%d", "k%d", "😀%d", "a.b/c:%d")
TAGS = ("TagA", "标签", "paid", "Tag with space", "AaAa", "BBBB", "😀")
NAMES = ("a", "用户", "x" * 20, "trace-id", "__SHARDINGKEY", "é", "CLUSTER", "WAIT")

LARGEST = 4_194_304

PAIRS = pa.map_(pa.string(), pa.string())
TYPES = {
    "topic": pa.string(), "body": pa.binary(), "key": pa.string(), "tags": pa.string(), "properties": PAIRS,
    "queueId": pa.int32(), "bornTimestamp": pa.timestamp("ms", "UTC"), "flag": pa.int32(), "bornHost": pa.string(),
    "reconsumeTimes": pa.int32(),
}  # fmt: skip


@dataclass
class Written:
    """The rows that were written, in the order of their tasks."""

    rows: list[dict[str, Any]] = field(default_factory=list)


def geometry(r: random.Random) -> dict[str, Any]:
    """The sizes of a new store, as a broker's settings; some have room for the largest records."""
    return {
        "mappedFileSizeCommitLog": r.choice((4096, 5000, 16384, 65536, 1 << 20, LARGEST + 8, LARGEST + 8, 9_000_000)),
        "mappedFileSizeConsumeQueue": r.choice((100, 200, 400, 2000)),
        "maxHashSlotNum": r.choice((5, 51, 500)),
        "maxIndexNum": r.choice((60, 400, 3000)),
    }


def table(
    r: random.Random, file_size: int, count: int, end: int = 0, topics: tuple[str, ...] = TOPICS
) -> tuple[pa.Table, list[dict[str, Any]], int]:
    """A random table with a random choice of columns, its rows, and the new end of a log that ended at `end`.

    Some records fill their file except the 8 bytes that must be left, or miss that by one; some have the maximum size.
    """
    queues = r.choice((1, 4, r.randrange(1, 91)))
    optional = [name for name in ("key", "tags", "properties", "queueId", "bornTimestamp", "flag", "bornHost",
                                  "reconsumeTimes") if r.random() < 0.7]  # fmt: skip
    rows = []
    for _ in range(count):
        values: dict[str, Any] = {
            "key": " ".join(r.choice(WORDS) % r.randrange(99) for _ in range(r.choice((1, 1, 2, 5)))),
            "tags": r.choice(TAGS),
            "properties": [(n, f"v{r.randrange(9)}") for n in r.sample(NAMES, r.choice((0, 1, 3)))]
            + ([("UNIQ_KEY", f"{r.getrandbits(128):032X}")] if r.random() < 0.7 else []),
            "queueId": r.randrange(queues),
            "bornTimestamp": r.randrange(1_600_000_000_000, 1_700_000_000_000),
            "flag": r.choice((0, -1, 2**31 - 1)),
            "bornHost": r.choice(("10.1.2.3:4", "[2001:db8::1]:7")),
            "reconsumeTimes": r.choice((0, 3)),
        }
        row: dict[str, Any] = {"topic": r.choice(topics), "body": b""}
        row |= {name: None if r.random() < 0.2 else values[name] for name in optional}
        row["body"] = r.randbytes(_body_size(r, file_size - end % file_size, file_size, record_size(row)))
        end = _end_after(end, record_size(row), file_size)
        rows.append(row)
    names = ["topic", "body", *optional]
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in names}), rows, end


def _body_size(r: random.Random, room: int, file_size: int, empty: int) -> int:
    kind, largest = r.random(), min(LARGEST, file_size - 8) - empty
    if kind < 0.06:
        wanted = room - 8 + r.choice((-1, 0, 0, 1)) - empty
        # A file of several megabytes is filled by many records, not by a single one.
        return wanted if 0 < wanted <= min(largest, 70_000) else 1
    if kind < 0.07 or (kind < 0.1 and file_size < 70_000):
        return largest
    return r.choice((1, 1, 5, 100, 900))


def record_size(row: dict[str, Any]) -> int:
    """TOTALSIZE of a row's record (rocketmq.md 2.1): 91 bytes and the variable parts."""
    pairs = "\x02".join(f"{name}\x01{value}" for name, value in expected_properties(row))
    varying = len(row["topic"].encode()) + len(row["body"]) + len(pairs.encode())
    return 91 + varying + (12 if (row.get("bornHost") or "").startswith("[") else 0)


def _end_after(end: int, size: int, file_size: int) -> int:
    room = file_size - end % file_size
    return end + size if size + 8 <= room else end + room + size


def expected_properties(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The stored pairs of a row (interface.md 15)."""
    pairs = list(row.get("properties") or [])
    for name, value in (("KEYS", row.get("key")), ("TAGS", row.get("tags"))):
        if value is not None:
            pairs.append((name, value))
    return pairs


def row_problems(rows: list[dict[str, Any]], directory: Path) -> list[str]:
    """How the store's log, as mqstore itself reads it, differs from the rows that were written, in order."""
    with open_store(str(directory)) as store:
        batches = [b for p in store.snapshot().plan(in_partitions(1, **AS_BROKER)) for b in p.read()]
    got = pa.Table.from_batches(batches).sort_by("physicalOffset").to_pylist() if batches else []
    if len(got) != len(rows):
        return [f"{len(rows)} rows written, {len(got)} read"]
    return [line for row, mine in zip(rows, got, strict=True) for line in _different(row, mine)][:8]


def _different(row: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    wanted: dict[str, Any] = {
        "topic": row["topic"], "body": row["body"], "properties": expected_properties(row),
        "key": row.get("key"), "tags": row.get("tags"), "flag": row.get("flag") or 0,
        "bornHost": row.get("bornHost") or "127.0.0.1:0", "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": row.get("reconsumeTimes") or 0, "sysFlag": mine["sysFlag"] & 0x30,
        "preparedTransactionOffset": 0,
    }  # fmt: skip
    if row.get("queueId") is not None:
        wanted["queueId"] = row["queueId"]
    elif row.get("key") is not None and "queues" in row:
        wanted["queueId"] = abs(java_hash(row["key"])) % row["queues"]
    return [f"{name}: wrote {value!r}, read {mine[name]!r}" for name, value in wanted.items() if mine[name] != value]


def key_problems(
    version: str, copy: Path, settings: Settings, directory: Path, keys: list[tuple[str, str]]
) -> list[str]:
    """Keys that the real store's index finds at other addresses than mqstore. Compares only answers below its limit of
    64.
    """
    lines = []
    with Oracle(version, copy, settings) as oracle:
        oracle.ask(op="wait")
        for topic, key in keys:
            answer = oracle.ask(op="query", topic=topic, key=key, max=64, begin=0, end=1 << 62)
            theirs = sorted({m["phy"] for m in answer["msgs"]})
            rows = read(directory, in_partitions(1, topics=(topic,), keys=(key,), **AS_BROKER))
            unique = read(directory, in_partitions(1, topics=(topic,), message_ids=(key,), **AS_BROKER))
            mine = sorted({row["physicalOffset"] for row in rows + unique})
            if len(theirs) < 60 and mine != theirs:
                lines.append(f"{version} key {topic}#{key}: the store finds {theirs}, mqstore {mine}")
    return lines


def time_problems(version: str, copy: Path, settings: Settings, directory: Path, r: random.Random) -> list[str]:
    """Times for which 5.3.3 finds another offset than mqstore's `startingTimestamp`, or 4.9.3 another than its own rule
    states: a message of that time, else the nearer neighbour in the file (rocketmq.md 6.3). Only queues whose times
    never fall: otherwise the result depends on where the bisection begins, which expired entries change.
    """
    lines = []
    queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in read(directory, in_partitions(1, **AS_BROKER)):
        queues.setdefault((row["topic"], row["queueId"]), []).append((row["queueOffset"], row["storeTimestamp"]))
    queues = {key: found for key, found in queues.items() if _rises(found)}
    per_file = int(str(settings["mappedFileSizeConsumeQueue"])) // 20
    with Oracle(version, copy, settings) as oracle:
        for topic, queue_id in r.sample(sorted(queues), min(len(queues), 10)):
            found = sorted(queues[topic, queue_id])
            times = sorted({ms for _, ms in found})
            for at in {times[0] - 1, times[0], r.choice(times), r.choice(times) + 1, times[-1], times[-1] + 1}:
                answer = oracle.ask(op="bytime", topic=topic, queueId=queue_id, ts=at)["offset"]
                if version == "533":
                    request = in_partitions(1, assign=((topic, queue_id),), start_ms=at, **AS_BROKER)
                    mine = [row["queueOffset"] for row in read(directory, request)]
                    expected = {min(mine, default=found[-1][0] + 1)}
                else:
                    expected = _by_time_493(found, at, per_file)
                if answer not in expected:
                    lines.append(f"{version} {topic} {queue_id} at {at}: the store says {answer}, expected {expected}")
    return lines


def _rises(found: list[tuple[int, int]]) -> bool:
    times = [ms for _, ms in sorted(found)]
    return times == sorted(times)


def _by_time_493(found: list[tuple[int, int]], at: int, per_file: int) -> set[int]:
    """Offsets that 4.9.3 may return if times rise and each file's own time is that of its last message."""
    equal = {offset for offset, ms in found if ms == at}
    below = [(at - ms, offset) for offset, ms in found if ms < at]
    above = [(ms - at, offset) for offset, ms in found if ms > at]
    if equal or not below or not above:
        return equal or {above[0][1] if above else below[-1][1]}
    in_one_file = above[0][1] % per_file != 0
    return {below[-1][1] if in_one_file and below[-1][0] <= above[0][0] else above[0][1]}
