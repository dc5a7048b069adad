"""Records, properties and index files that mqstore encodes: the same bytes as the model and the real stores."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import FormatError
from storage_core.formats.java_hash import java_hash
from storage_core.formats.rocketmq.config_json import decode_config, encode_config, merged_topics, queue_counts
from storage_core.formats.rocketmq.consumequeue import encode_entries
from storage_core.formats.rocketmq.encode import Rows, encode, patch
from storage_core.formats.rocketmq.index_insert import EMPTY, Puts, encode_header, put, put_into, rolled, room
from storage_core.formats.rocketmq.indexfile import Geometry, key_hash
from storage_core.formats.rocketmq.properties import parse
from storage_core.formats.rocketmq.property_pairs import PairColumn, encode_pairs, no_pairs, stored
from tests.reference import rocketmq_model as model
from tests.reference.rocketmq_index import Index, dispatch
from tests.support.rocketmq_run import RUN_DIGESTS, run_message

pytestmark = pytest.mark.usefixtures("either_loops")


def _rows(messages: list[model.Message], queue_offsets: list[int], physical_offsets: list[int]) -> Rows:
    def column(name: str) -> Any:
        return np.array([getattr(message, name) for message in messages])

    return Rows(
        topics=pa.array([m.topic for m in messages]).dictionary_encode(),
        bodies=pa.array([m.body for m in messages], pa.binary()),
        properties=pa.array([m.properties for m in messages], pa.binary()),
        born_hosts=pa.array([model.host_bytes(m.born_host) for m in messages], pa.binary()),
        store_hosts=pa.array([model.host_bytes(m.store_host) for m in messages], pa.binary()),
        queue_id=column("queue_id"), flag=column("flag"), sys_flag=column("sys_flag"), born_ms=column("born_ms"),
        reconsume_times=column("reconsume_times"), queue_offset=np.array(queue_offsets),
        physical_offset=np.array(physical_offsets), store_ms=column("store_ms"),
        prepared_offset=column("prepared_offset"),
    )  # fmt: skip


HOSTS = st.sampled_from(["127.0.0.1:1", "10.2.3.4:65535", "[2001:db8::1]:7", "[::1]:10911"])
MESSAGES = st.builds(
    model.Message,
    topic=st.text("aT-%", min_size=1, max_size=127),
    queue_id=st.integers(-5, 100),
    body=st.binary(max_size=40),
    properties=st.binary(max_size=30),
    store_ms=st.integers(0, 2**60),
    born_ms=st.integers(0, 2**60),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 1, 2, 4, 8, 12, 0x301]),
    reconsume_times=st.integers(0, 16),
    prepared_offset=st.integers(0, 2**62),
    born_host=HOSTS,
    store_host=HOSTS,
)


@settings(deadline=None)
@given(st.lists(st.tuples(MESSAGES, st.integers(0, 2**40), st.integers(0, 2**50)), min_size=1, max_size=8))
def test_records_equal_the_model(found: list[tuple[model.Message, int, int]]) -> None:
    messages, queue_offsets, physical_offsets = ([each[i] for each in found] for i in range(3))
    expected = [model.encode(m, q, p) for m, q, p in found]
    rows = _rows(messages, queue_offsets, physical_offsets)

    got = encode(rows)

    assert got.data.to_pybytes() == b"".join(expected)
    assert got.sizes.tolist() == [len(record) for record in expected] == rows.sizes.tolist()


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=8), st.integers(1, 2**40))
def test_patched_records_equal_records_made_so(messages: list[model.Message], store_ms: int) -> None:
    offsets, physical_offsets = list(range(7, 7 + len(messages))), [1 << 33 | i for i in range(len(messages))]
    blank = encode(_rows(messages, [0] * len(messages), [0] * len(messages)))
    data = np.frombuffer(blank.data, np.uint8).copy()

    patch(data, blank.bounds[:-1].astype(np.int64), np.array(offsets), np.array(physical_offsets), store_ms,
          blank.sys_flags & 0x10 != 0)  # fmt: skip

    for message in messages:
        message.store_ms = store_ms
    assert data.tobytes() == encode(_rows(messages, offsets, physical_offsets)).data.to_pybytes()


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=8), st.data())
def test_a_part_at_its_place_equals_records_made_so(messages: list[model.Message], draws: st.DataObject) -> None:
    """Whether sizes and flags of all rows are already known or not."""
    offsets, physical_offsets = list(range(7, 7 + len(messages))), [1 << 33 | i for i in range(len(messages))]
    start = draws.draw(st.integers(0, len(messages) - 1))
    here = slice(start, draws.draw(st.integers(start + 1, len(messages))))
    rows = _rows(messages, [0] * len(messages), [0] * len(messages))
    if draws.draw(st.booleans()):
        assert len(rows.sizes) == len(rows.sys_flags) == len(messages)

    got = encode(rows.part(here.start, here.stop).placed(np.array(offsets[here]), np.array(physical_offsets[here]), 5))

    for message in messages:
        message.store_ms = 5
    expected = encode(_rows(messages[here], offsets[here], physical_offsets[here]))
    assert got.data.to_pybytes() == expected.data.to_pybytes()
    assert got.sys_flags.tolist() == expected.sys_flags.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)),
                min_size=1, max_size=9), st.data())  # fmt: skip
def test_entries_are_those_of_the_records_that_are_wanted(
    records: list[tuple[int, int, int]], draws: st.DataObject
) -> None:
    order = draws.draw(st.lists(st.integers(0, len(records) - 1), max_size=12))
    columns = [np.array(column, np.int64) for column in zip(*records, strict=True)]
    expected = b"".join(struct.pack(">qiq", *records[row]) for row in order)
    assert encode_entries(*columns, np.array(order, np.int64)).tobytes() == expected
    assert encode_entries(*columns).tobytes() == b"".join(struct.pack(">qiq", *record) for record in records)


def test_long_topics_get_the_second_magic() -> None:
    message = model.Message("V" * 128, 1, b"b", b"", 5, 6)
    record = encode(_rows([message], [3], [4])).data.to_pybytes()
    assert record[4:8] == bytes.fromhex("daa320ab")
    assert record[88:] == b"b" + struct.pack(">h", 128) + b"V" * 128 + b"\0\0"
    assert len(record) == struct.unpack(">i", record[:4])[0] == 91 + 1 + 1 + 128


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=5)
PAIRS = st.lists(st.tuples(st.sampled_from(["a", "KEYS", "é", "TAGS", "b"]) | TEXT, TEXT), max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(PAIRS, st.none() | TEXT, st.none() | TEXT), max_size=6))
def test_properties_equal_the_obvious_way(rows: list[tuple[list[tuple[str, str]], str | None, str | None]]) -> None:
    expected = []
    for pairs, key, tags in rows:
        named = {"KEYS": key, "TAGS": tags}
        written = [(n, named.get(n) or v) for n, v in pairs]
        written += [(n, v) for n, v in named.items() if v is not None and n not in dict(pairs)]
        expected.append("\x02".join(f"{n}\x01{v}" for n, v in written).encode())
    bounds = np.cumsum([0, *(len(pairs) for pairs, _, _ in rows)]).astype(np.int32)
    column = PairColumn(
        pa.array([n for pairs, _, _ in rows for n, _ in pairs], pa.string()),
        pa.array([v for pairs, _, _ in rows for _, v in pairs], pa.string()),
        bounds,
    )
    keys, tags = (pa.array([row[i] for row in rows], pa.string()) for i in (1, 2))
    column = column.replaced("KEYS", keys).replaced("TAGS", tags)

    got = encode_pairs(column, [("KEYS", keys), ("TAGS", tags)])

    assert got.to_pylist() == expected
    assert column.value_of("b").to_pylist() == [dict(pairs).get("b") for pairs, _, _ in rows]
    for index, data in enumerate(expected):
        assert parse(data).get("KEYS") == (rows[index][1] or dict(rows[index][0]).get("KEYS"))


WORDS = st.text(st.sampled_from("ab  é\U0001f600"), min_size=1, max_size=9)
OWN_PAIRS = st.lists(
    st.tuples(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "KEYT", "UNIQ_KEX", "é"]), TEXT | WORDS), max_size=5
)


@settings(deadline=None)
@given(st.lists(st.tuples(OWN_PAIRS, *[st.none() | TEXT | WORDS] * 3), max_size=8), st.integers(0, 2), st.data())
def test_what_is_stored_equals_the_obvious_way(
    rows: list[tuple[list[tuple[str, str]], str | None, str | None, str | None]], before: int, draws: st.DataObject
) -> None:
    topics = [draws.draw(st.sampled_from(["t", "orders", "%RETRY%g"])) for _ in rows]
    rows = [([("lost", "lost")] * before, "lost", "lost", "lost"), *rows]
    bounds = np.cumsum([0, *(len(pairs) for pairs, *_ in rows[1:])]).astype(np.int32)
    names, values = (
        pa.array([pair[i] for pairs, *_ in rows for pair in pairs], pa.string())[before:] for i in range(2)
    )
    key, tags, ids = (pa.array([row[i] for row in rows], pa.string())[1:] for i in (1, 2, 3))

    got = stored(pa.array(topics, pa.string()).dictionary_encode(), PairColumn(names, values, bounds), key, tags, ids)

    for index, (pairs, *texts) in enumerate(rows[1:]):
        given_texts = dict(zip(("KEYS", "TAGS", "UNIQ_KEY"), texts, strict=True))
        mine = [(n, (given_texts.get(n) if n != "UNIQ_KEY" else None) or v) for n, v in pairs]
        mine += [(n, v) for n, v in given_texts.items() if v is not None and n not in dict(pairs)]
        found = dict(mine)
        assert got.properties[index].as_py() == "\x02".join(f"{n}\x01{v}" for n, v in mine).encode()
        keys = [found["UNIQ_KEY"]] if "UNIQ_KEY" in found else []
        keys += [word for word in found.get("KEYS", "").split(" ") if word]
        start = int(got.key_counts[:index].sum())
        expected = [key_hash(topics[index], word) for word in keys]
        assert got.hashes[start : start + int(got.key_counts[index])].tolist() == expected
        assert got.tags_codes[index] == java_hash(found.get("TAGS", ""))
    assert len(got.hashes) == got.key_counts.sum()


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.text(st.sampled_from("ab\x01\x02é"), max_size=3)] * 2), max_size=4), st.integers(0, 2))
def test_a_look_at_pairs_equals_the_obvious_way(pairs: list[tuple[str, str]], before: int) -> None:
    names, values = (pa.array(["\x01"] * before + [pair[i] for pair in pairs], pa.string())[before:] for i in (0, 1))
    column = PairColumn(names, values, np.array([0, len(pairs)], np.int32))
    plain = all(text and not {"\x01", "\x02"} & set(text) for pair in pairs for text in pair)
    assert column.look(("ab", "é", "x")) == (plain, [name in dict(pairs) for name in ("ab", "é", "x")])


def test_no_properties_are_no_bytes() -> None:
    assert encode_pairs(no_pairs(2), []).to_pylist() == [b"", b""]


class Files:
    """Index files in memory, filled in batches by the code under test; `known`: with all slots in memory."""

    def __init__(self, geometry: Geometry, known: bool) -> None:
        self.geometry, self.files, self.known = geometry, [bytearray(geometry.file_size)], known
        self.header, self.slots = EMPTY, np.zeros(geometry.slots, np.int32)

    def add(self, puts: Puts) -> None:
        done = 0
        while done < len(puts):
            if not room(self.header, self.geometry):
                self.header = rolled(self.header)
                self.files.append(bytearray(self.geometry.file_size))
                self.slots = np.zeros(self.geometry.slots, np.int32)
                self.files[-1][:40] = encode_header(self.header)
            part = puts.part(done, done + room(self.header, self.geometry))
            file = self.files[-1]
            at = self.geometry.entries_position + 20 * max(self.header.entry_count, 1)
            file[at : at + 20 * len(part)] = self.put(part).tobytes()
            file[:40] = encode_header(self.header)
            done += len(part)

    def put(self, part: Puts) -> npt.NDArray[Any]:
        """Updates header and slots; returns the entries."""
        if self.known:
            entries, self.header = put_into(self.slots, self.header, part, self.geometry)
            self.files[-1][40 : self.geometry.entries_position] = self.slots.astype(">i4").tobytes()
            return entries
        change = put(self.header, part, self.slot_values, self.geometry)
        for slot, value in zip(change.slots.tolist(), change.values.tolist(), strict=True):
            struct.pack_into(">i", self.files[-1], 40 + 4 * slot, value)
        self.header = change.header
        return change.entries

    def slot_values(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        file = self.files[-1]
        return np.array([struct.unpack_from(">i", file, 40 + 4 * slot)[0] for slot in slots.tolist()], np.int32)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_index_files_equal_the_model(seed: int, known: bool) -> None:
    r = random.Random(seed)
    geometry = Geometry(r.choice((1, 5, 51)), r.choice((2, 7, 60)))
    expected: list[Index] = []
    made, clock, physical_offset = Files(geometry, known), 1_700_000_000_000, 0
    for _ in range(r.randrange(1, 6)):
        hashes, physical_offsets, times = [], [], []
        for _ in range(r.randrange(1, 40)):
            clock, physical_offset = (
                clock + r.choice((0, 1, 999, 1000, 5000, -3000)),
                physical_offset + r.randrange(91, 400),
            )
            words = [f"k{r.randrange(20)}" for _ in range(r.randrange(1, 4))]
            dispatch(
                expected, geometry.slots, geometry.entries, "T", physical_offset, clock, 0, {"KEYS": " ".join(words)}
            )
            hashes += [key_hash("T", word) for word in words]
            physical_offsets += [physical_offset] * len(words)
            times += [clock] * len(words)
        made.add(Puts(np.array(hashes, np.int32), np.array(physical_offsets), np.array(times)))

    assert [bytes(file) for file in made.files] == [file.content() for file in expected]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_the_run_of_200_messages_has_the_real_stores_digest(version: str) -> None:
    store = model.ModelStore(log_file_size=16384, queue_file_size=400)
    messages = [run_message(i, version) for i in range(200)]
    placed = [store.put(message)[0] for message in messages]
    counts: dict[tuple[str, int], int] = {}
    offsets = []
    for message in messages:
        key, plain = (message.topic, message.queue_id), message.sys_flag & 12 in (0, 8)
        offsets.append(counts.get(key, 0) if plain else 0)
        counts[key] = counts.get(key, 0) + plain

    encoded = encode(_rows(messages, offsets, placed))

    content = bytearray(b"".join(store.files()[f"commitlog/{n * 16384:020d}"] for n in range(len(store.log))))
    for at, start, stop in zip(placed, encoded.bounds[:-1].tolist(), encoded.bounds[1:].tolist(), strict=True):
        content[at : at + stop - start] = bytes(stop - start)
        content[at : at + stop - start] = encoded.data[start:stop].to_pybytes()
    assert hashlib.sha256(content).hexdigest() == RUN_DIGESTS[version]["commitlog"]


def test_config_files_as_fastjson_writes_them() -> None:
    offsets = b'{\n\t"offsetTable":{\n\t\t"T@g {1:2,}":{0:250,1:-3\n\t\t},\n\t\t"a\\"{7:":{}\n\t}\n}'
    assert decode_config(offsets) == {"offsetTable": {"T@g {1:2,}": {"0": 250, "1": -3}, 'a"{7:': {}}}
    with pytest.raises(FormatError):
        decode_config(b'{"a":')
    with pytest.raises(FormatError):
        decode_config(b"[1]")


def test_topics_are_merged_and_the_rest_stays() -> None:
    there = {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 5},
        "extra": [1],
        "topicConfigTable": {"a": {"topicName": "a", "perm": 4, "readQueueNums": 2, "writeQueueNums": 8}, "d": {}},
    }
    got = merged_topics(there, {"a": 4, "b": 1, "d": 16}, 99)
    assert got is not None
    assert got["extra"] == [1]
    assert got["dataVersion"] == {"counter": 4, "stateVersion": 0, "timestamp": 99}
    assert got["topicConfigTable"]["a"] == {"topicName": "a", "perm": 4, "readQueueNums": 4, "writeQueueNums": 8}
    assert got["topicConfigTable"]["d"] == {}
    assert queue_counts(got) == {"a": 8, "b": 1, "d": 16}
    assert merged_topics(got, {"a": 4, "b": 1}, 100) is None
    assert decode_config(encode_config(got)) == got
