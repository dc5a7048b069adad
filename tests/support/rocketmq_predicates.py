"""Generated predicates, generated stores to query with them, and their evaluation on a row in Python."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from storage_core.store import Predicate, ScanRequest
from tests.reference.predicates import true
from tests.reference.rocketmq_index import Index, dispatch
from tests.reference.rocketmq_model import Message, ModelStore, properties_bytes
from tests.reference.served import Row, read

_FOLDER = TemporaryDirectory(prefix="pushdown-")
STORES = 12
KEYS = ("AaAa", "BBBB", "AaBB", "k", "order-1", "order-2", "日本", "😀", "a b", "order-1 k")
TAGS = ("A", "AaAa", "BBBB", "paid out", "标签")
TOPICS = ("T", "orders", "%RETRY%g", "SCHEDULE_TOPIC_XXXX")
IDS = ("U1", "U2", "7F0000010000000000000000000000A1")
FIRST_MS = 1_700_000_000_000
TEXTS = {"topic": TOPICS, "key": KEYS, "tags": TAGS, "msgId": (*IDS, "7F00000100002A9F0000000000000000")}
NUMBERS = {
    "queueId": st.integers(-1, 3),
    "queueOffset": st.integers(-1, 40),
    "physicalOffset": st.integers(0, 40).map(lambda n: n * 211),
    "storeTimestamp": st.integers(-2, 60).map(lambda n: (FIRST_MS + n * 500) * 1000),
    "bornTimestamp": st.integers(-2, 60).map(lambda n: (FIRST_MS + n * 500) * 1000 + 1),
    "size": st.integers(90, 200),
}


@lru_cache(maxsize=STORES)
def made(seed: int) -> tuple[Path, list[Row]]:
    """A small store of the model, whose index files have few slots, and all rows that it serves."""
    r = random.Random(seed)
    store = ModelStore(r.choice((2048, 8192)), r.choice((100, 400)))
    index: list[Index] = []
    slots, entries = r.choice((1, 3, 7)), r.choice((9, 30, 500))
    now = FIRST_MS
    for _ in range(r.choice((1, 30, 90))):
        now += r.choice((0, 0, 400, 1500, -700))
        pairs = [("a", "1")]
        if r.random() < 0.7:
            pairs.append(("KEYS", r.choice(KEYS)))
        if r.random() < 0.6:
            pairs.append(("TAGS", r.choice(TAGS)))
        if r.random() < 0.6:
            pairs.append(("UNIQ_KEY", r.choice(IDS)))
        message = Message(
            r.choice(TOPICS), r.randrange(3), r.randbytes(r.randrange(60)), properties_bytes(pairs, True), now, now - 3,
            sys_flag=r.choice((0, 0, 8, 4, 12)),
        )  # fmt: skip
        physical_offset, _ = store.put(message)
        dispatch(index, slots, entries, message.topic, physical_offset, now, message.sys_flag, dict(pairs))
    directory = store.save(Path(_FOLDER.name) / str(seed))
    if r.random() < 0.8:
        (directory / "index").mkdir()
        for number, file in enumerate(index):
            (directory / "index" / str(20231114221320000 + number)).write_bytes(file.content())
    return directory, read(directory, ScanRequest())


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Predicate]:
    many = st.lists(st.none() | values, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Predicate, st.just(column), st.sampled_from(("=", "!=", "<", "<=", ">", ">=")), values),
        st.builds(Predicate, st.just(column), st.sampled_from(("in", "not in")), many),
        st.builds(Predicate, st.just(column), st.sampled_from(("is null", "is not null"))),
    )


def simple() -> st.SearchStrategy[Predicate]:
    found = [comparisons(column, values) for column, values in NUMBERS.items()]
    for column, texts in TEXTS.items():
        found.append(comparisons(column, st.sampled_from(texts)))
        parts = st.sampled_from(sorted({text[:length] for text in texts for length in (1, 2, 4)}))
        ops = st.sampled_from(("starts with", "not starts with", "contains"))
        found.append(st.builds(Predicate, st.just(column), ops, parts))
    words = st.sampled_from([word for key in KEYS for word in key.split(" ")])
    return st.one_of(*found, st.builds(Predicate, st.just("keys"), st.just("contains"), words))


def alternatives() -> st.SearchStrategy[Predicate]:
    group = st.lists(simple(), min_size=1, max_size=3).map(tuple)
    return st.builds(Predicate, st.just(""), st.just("any of"), st.lists(group, min_size=1, max_size=3).map(tuple))


def holds(predicate: Predicate, row: Row) -> bool:
    """Whether the predicate is true for a row whose times are milliseconds."""
    micros = {name: value * 1000 for name, value in row.items() if name.endswith("Timestamp") and value is not None}
    return true(predicate, {**row, **micros})
