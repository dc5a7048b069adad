"""The compiled loops return what their twins return, reject spans outside a buffer, and are loaded when it pays."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compiled import loading, span_loops
from storage_core.compiled.read_loops import read_runs
from storage_core.formats.rocketmq.compiled import pair_loops, property_loops, record_pass
from storage_core.formats.rocketmq.compiled.record_pass import read_records
from storage_core.formats.rocketmq.consumequeue import (
    BLANK_SIZE,
    EntryRanges,
    Expected,
    LogBounds,
    encode_entries,
    in_log_order,
)
from storage_core.formats.rocketmq.message import (
    BORN_HOST_V6,
    HEADER_V4,
    MAGIC_V1,
    MAGIC_V2,
    NOTHING,
    STORE_HOST_V6,
    Messages,
    Wanted,
    decode,
)
from storage_core.formats.rocketmq.properties import parse
from storage_core.formats.span_equals import KnownTexts
from storage_core.formats.spans import FEW, gather, joined

MAGICS = st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2, 0, 0xCBD43194])
FLAGS = st.sampled_from([0, 0, 1, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])


@pytest.fixture(scope="module")
def both() -> Callable[[Callable[[], object]], tuple[object, object]]:
    """The results of a function with numpy and with the compiled loops."""

    def run(function: Callable[[], object]) -> tuple[object, object]:
        found = []
        for setting in ("never", "always"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(loading, "process", loading.Process(setting))
                found.append(function())
        return found[0], found[1]

    return run


def record(
    flags: int, magic: int, body: bytes, topic: bytes, properties: bytes, off: tuple[int, ...] = (0,) * 4
) -> bytes:
    """A record with only its parts set; `off` is added to the lengths of body, topic, properties and the record."""
    hosts = (20 if flags & BORN_HOST_V6 else 8) + (20 if flags & STORE_HOST_V6 else 8)
    wide = 2 if magic == MAGIC_V2 else 1
    data = magic.to_bytes(4, "big") + bytes(28) + flags.to_bytes(4, "big") + bytes(8 + hosts + 8 + 12)
    data += (len(body) + off[0]).to_bytes(4, "big", signed=True) + body
    data += ((len(topic) + off[1]) % (1 << 8 * wide)).to_bytes(wide, "big") + topic
    data += ((len(properties) + off[2]) % (1 << 16)).to_bytes(2, "big") + properties
    return (4 + len(data) + off[3]).to_bytes(4, "big", signed=True) + data


@st.composite
def records(draw: st.DrawFn) -> tuple[bytes, int]:
    """A record, valid or slightly wrong, and the size that its index states."""
    parts = [draw(st.binary(max_size=12)) for _ in range(3)]
    off = tuple(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, -200])) for _ in range(4))
    data = record(draw(FLAGS), draw(MAGICS), *parts, off)
    size = len(data)
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, size - 1))
        data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data, size + draw(st.sampled_from([0, 0, 0, 1, 30, -1, -60]))


@settings(max_examples=300, deadline=None)
@given(made=st.lists(records(), min_size=FEW + 1, max_size=20), padding=st.integers(60, 90))
def test_records_have_the_same_parts_and_flaws(
    both: Callable[[Callable[[], object]], tuple[Messages, Messages]],
    made: list[tuple[bytes, int]],
    padding: int,
) -> None:
    buffer = np.frombuffer(b"".join(data for data, _ in made) + bytes(padding), np.uint8)
    starts = np.cumsum([0, *(len(data) for data, _ in made[:-1])])
    sizes = np.array([size for _, size in made])
    plain, compiled = both(lambda: decode(buffer, starts, sizes))
    assert compiled.flaws.tolist() == plain.flaws.tolist()
    for part in ("body", "topic", "properties"):
        for edge in ("start", "size"):
            assert getattr(compiled, f"{part}_{edge}").tolist() == getattr(plain, f"{part}_{edge}").tolist()
    for name in HEADER_V4.dtype.names or ():
        assert compiled.column(name).tolist() == plain.column(name).tolist()


PIECES = st.sampled_from(
    [b"KEYS\x01a", b"KEYS\x01", b"TAGS\x01bc", b"KEYS", b"", b"\x01x", b"TAGSX\x01y", "KEYS\x01é".encode()]
)
TOPICS = (b"", b"t", b"topic-of-12-b", b"u")


@st.composite
def whole_records(draw: st.DrawFn) -> bytes:
    """A record whose parts are valid; its body may not match its CRC."""
    body, topic = draw(st.binary(max_size=40)), draw(st.sampled_from(TOPICS))
    data = bytearray(record(draw(FLAGS), MAGIC_V1, body, topic, b"\x02".join(draw(st.lists(PIECES, max_size=4)))))
    crc = zlib.crc32(body) & 0x7FFFFFFF if draw(st.booleans()) else 7
    data[8:12], data[15], data[27], data[35] = crc.to_bytes(4, "big"), *(draw(st.integers(0, 1)) for _ in range(3))
    return bytes(data)


@settings(max_examples=200, deadline=None)
@given(made=st.lists(whole_records(), min_size=FEW + 1, max_size=20), draws=st.data())
def test_records_are_read_in_one_pass_as_in_many(
    both: Callable[[Callable[[], object]], tuple[Messages, Messages]], made: list[bytes], draws: st.DataObject
) -> None:
    def drawn(low: int, high: int) -> npt.NDArray[np.int64]:
        return np.array(draws.draw(st.lists(st.integers(low, high), min_size=len(made), max_size=len(made))))

    buffer = np.frombuffer(b"".join(made), np.uint8)
    sizes = np.array([len(data) for data in made])
    queue = drawn(0, len(TOPICS) - 1).astype(np.int32)
    queue_ids = np.array([0, 1, 0, 1], np.int32)
    expected = Expected(drawn(0, 1), drawn(0, 1), queue, queue_ids, KnownTexts(TOPICS))
    wanted = Wanted(expected, draws.draw(st.booleans()), draws.draw(st.booleans()), ("KEYS", "TAGS"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_pass, "VALUE_SIZE", draws.draw(st.sampled_from([0, 1, 64])))
        plain, compiled = both(lambda: decode(buffer, np.cumsum(sizes) - sizes, sizes, wanted))
    assert not plain.flaws.any()
    assert not compiled.flaws.any()
    assert compiled.differences.tolist() == plain.differences.tolist()
    assert compiled.wrong_bodies().tolist() == plain.wrong_bodies().tolist()
    assert compiled.compressed().tolist() == plain.compressed().tolist()
    assert compiled.bodies().equals(plain.bodies())
    for name in wanted.properties:
        assert compiled.property_column().values(name).equals(plain.property_column().values(name))
    for name in HEADER_V4.dtype.names or ():
        assert compiled.column(name).tolist() == plain.column(name).tolist()
    some = np.arange(0, len(made), 2)
    assert compiled.take(some).bodies().equals(plain.take(some).bodies())
    assert compiled.take(some).differences.tolist() == plain.take(some).differences.tolist()


LARGEST = (1 << 63) - 1
ADDRESSES = st.integers(-1, 120) | st.sampled_from([LARGEST, LARGEST - 3, -LARGEST])
ENTRIES = st.lists(st.tuples(ADDRESSES, st.sampled_from([0, 1, 5, 5, 5, 40, BLANK_SIZE])), max_size=6)


@settings(max_examples=300, deadline=None)
@given(ranges=st.lists(st.tuples(ENTRIES, st.integers(0, 2), st.booleans()), min_size=1, max_size=4))
def test_entries_come_in_the_order_of_the_log(
    both: Callable[[Callable[[], object]], tuple[Any, Any]], ranges: list[tuple[list[tuple[int, int]], int, bool]]
) -> None:
    drawn = [(sorted(entries) if rises else entries, min(back, len(entries))) for entries, back, rises in ranges]
    bases, ends = np.array([0, 50, 110]), np.array([50, 100, 130])
    every = [entry for entries, _ in drawn for entry in entries]
    units = encode_entries(*np.array([(*entry, 0) for entry in every], np.int64).reshape(-1, 3).T)
    bounds = np.cumsum([0, *(len(entries) for entries, _ in drawn)])
    read = EntryRanges(
        bounds, np.array([back for _, back in drawn]), np.arange(len(drawn), dtype=np.int32) * 2,
        np.arange(len(drawn)) * 100,
    )  # fmt: skip
    plain, compiled = both(lambda: in_log_order(units, read, LogBounds(3, 125, bases, ends)))

    def is_plain(address: int, size: int) -> bool:
        inside = any(base <= address and address + size <= end for base, end in zip(bases, ends, strict=True))
        return 0 < size < BLANK_SIZE and address >= 3 and address + size <= 125 and inside

    right = all(is_plain(*entry) for entry in every)
    assert (plain is not None, compiled is not None) == (right, right)
    if right:
        own = [
            (address, number, 100 * number + at, size)
            for number, (entries, back) in enumerate(drawn)
            for at, (address, size) in enumerate(entries[back:])
        ]
        own.sort(key=lambda row: row[0])
        expected = [(2 * number, offset, address, size) for address, number, offset, size in own]
        for found in (plain, compiled):
            assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("flags", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_right_records_are_right(
    both: Callable[[Callable[[], object]], tuple[Messages, Messages]], magic: int, flags: int
) -> None:
    made = [record(flags, magic, b"b" * count, b"t" * 3, b"p" * 5) for count in range(2 * FEW)]
    sizes = np.array([len(data) for data in made])
    for messages in both(lambda: decode(np.frombuffer(b"".join(made), np.uint8), np.cumsum(sizes) - sizes, sizes)):
        assert not messages.flaws.any()
        assert messages.bodies().to_pylist() == [b"b" * count for count in range(2 * FEW)]
        assert set(messages.topics().to_pylist()) == {"ttt"}
        assert set(messages.properties().to_pylist()) == {b"ppppp"}


@given(st.binary(max_size=80), st.data())
def test_spans_are_gathered_in_any_order(
    both: Callable[[Callable[[], object]], tuple[pa.Array, pa.Array]], data: bytes, draws: st.DataObject
) -> None:
    edges = st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(sorted)
    spans = np.array(draws.draw(st.lists(edges, min_size=FEW + 1, max_size=20)), np.int64)
    buffer = np.frombuffer(data, np.uint8)
    plain, compiled = both(lambda: gather(buffer, spans[:, 0], spans[:, 1]))
    assert compiled.equals(plain)
    assert compiled.to_pylist() == [data[start:stop] for start, stop in spans.tolist()]


@given(rows=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=12), skipped=st.integers(0, 3))
def test_columns_are_joined_row_by_row(
    both: Callable[[Callable[[], object]], tuple[pa.Array, pa.Array]], rows: list[tuple[str, bytes]], skipped: int
) -> None:
    left = pa.array([text for text, _ in rows], pa.string())[skipped:]
    right = pa.array([data for _, data in rows], pa.binary())[skipped:]
    columns = [pa.scalar("a"), left, pa.scalar(b""), right, right]
    plain, compiled = both(lambda: joined(columns, len(left)))
    assert compiled.to_pylist() == plain.to_pylist()
    assert compiled.to_pylist() == [b"a" + text.encode() + data + data for text, data in rows[skipped:]]


SCRAPS = st.sampled_from(
    ["KEYS", "KEYS\x01", "\x02KEYS\x01", "TAGS\x01a", "K", "S", "\x01", "\x02", "value", "v" * 70, "é"]
)


@settings(max_examples=400, deadline=None)
@given(
    texts=st.lists(st.lists(SCRAPS, max_size=12).map("".join), min_size=1, max_size=5), before=st.integers(0, 70),
    after=st.integers(0, 140),
)  # fmt: skip
def test_properties_are_found_wherever_they_stand(texts: list[str], before: int, after: int) -> None:
    """Compared with parsing message by message: repeated names, empty values, names inside values."""
    stored, names = [text.encode() for text in texts], ["KEYS", "TAGS", "K"]
    buffer = np.frombuffer(b"\x02" * before + b"".join(stored) + b"KEYS\x01v\x02" * (after // 7), np.uint8)
    sizes = np.array([len(text) for text in stored])
    starts = before + np.cumsum(sizes) - sizes
    begins, ends = property_loops.property_spans(buffer, starts, sizes, names)
    for row, text in enumerate(stored):
        wanted = [parse(text).get(name, "").encode() for name in names]
        assert [buffer[begin:end].tobytes() for begin, end in zip(begins[:, row], ends[:, row], strict=True)] == wanted


@pytest.mark.parametrize("span", [(-1, 3), (5, 4), (3, 11), (1 << 40, 1 << 41)])
def test_what_lies_outside_is_refused(span: tuple[int, int]) -> None:
    buffer, starts, stops = np.zeros(10, np.uint8), np.array([0, span[0]]), np.array([10, span[1]])
    for refusing in (span_loops.gather, span_loops.crcs):
        with pytest.raises(ValueError, match="outside"):
            refusing(buffer, starts, stops)
    with open(__file__, "rb") as file:
        assert read_runs(np.full(2, file.fileno()), buffer, starts, stops, np.zeros(2, np.int64)) == 1
    same = span_loops.equal(buffer, starts, stops - starts, buffer[:3], np.array([0, 3]), np.zeros(2, np.int32))
    assert not same[1]
    if span[1] <= 10:
        return
    with pytest.raises(ValueError, match="outside"):
        property_loops.property_spans(buffer, starts, stops - starts, ["KEYS"])
    with pytest.raises(ValueError, match="outside"):
        property_loops.property_pairs(buffer, starts, np.array([0, 11]), None)
    with pytest.raises(ValueError, match="outside"):
        read_records(buffer, starts, np.array([0, 1 << 30]), NOTHING)
    nowhere = Expected(starts, starts, np.full(2, 1, np.int32), np.zeros(1, np.int32), KnownTexts([b"t"]))
    with pytest.raises(ValueError, match="outside"):
        read_records(np.zeros(200, np.uint8), np.zeros(2, np.int64), np.full(2, 91), Wanted(nowhere))
    with pytest.raises(ValueError, match="one entry"):
        read_records(np.zeros(200, np.uint8), np.zeros(1, np.int64), np.full(1, 91), Wanted(nowhere))


def test_they_are_loaded_from_so_many_bytes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "process", loading.Process("auto"))
    loops = loading.CompiledLoops("storage_core.compiled.span_loops")
    assert loops.after(loading.WORTH_LOADING - 1) is None
    assert loops.after() is None
    assert loops.after(1) is span_loops
    assert loops.after() is span_loops


def test_bytes_that_were_foreseen_count_only_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "process", process := loading.Process("auto"))
    with process.foreseeing(1000):
        assert not process.wants(loading.WORTH_LOADING + 999)
        assert process.wants(1)
    process = loading.Process("auto")
    known = loading.WORTH_LOADING_AT_ONCE - 1
    with process.foreseeing(known):
        assert not process.wants(known)
    assert not process.wants(loading.WORTH_LOADING - 1)
    assert process.wants(1)
    with process.foreseeing(1 << 20):
        assert process.wants(0)
    assert process.wants(0)
    process = loading.Process("auto")
    with process.foreseeing(loading.WORTH_LOADING_AT_ONCE):
        assert process.wants(0)
    assert process.wants(0)


@pytest.mark.parametrize(("setting", "code"), [("auto", 0), ("always", 1), ("never", 0)])
def test_without_numba_numpy_does_it(tmp_path: Path, setting: str, code: int) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('not here')\n")
    program = """
import numpy as np
from storage_core.compiled import loading
from storage_core.formats.span_equals import KnownTexts
from storage_core.formats.spans import gather
loading.process.wants(1 << 40)
print(gather(np.arange(9, dtype=np.uint8), np.arange(8), np.arange(1, 9)).to_pylist()[7])
"""
    environment = {**os.environ, loading.SETTING: setting, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("not here" in done.stderr) if code else (done.stdout == "b'\\x07'\n")


BOUNDS = st.lists(st.integers(0, 8), min_size=3, max_size=3).map(sorted) | st.lists(
    st.integers(-1, 9) | st.sampled_from([-(2**31), 2**31 - 1]), min_size=3, max_size=3
)


@settings(deadline=None)
@given(st.tuples(*[BOUNDS] * 5), st.lists(st.integers(-1, 3), min_size=2, max_size=2) | st.just([0, 2]),
       st.tuples(*[st.booleans()] * 3))  # fmt: skip
def test_pairs_outside_of_their_columns_are_refused(
    columns: tuple[list[int], ...], bounds: list[int], valid: tuple[bool, ...]
) -> None:
    """The valid bounds name KEYS and TAGS, so that every column is read; one message with two pairs."""
    names, out = np.frombuffer(b"KEYSTAGS", np.uint8), np.empty(400, np.uint8)
    arrays = [np.array(column, np.int32) for column in columns]
    begins, ends = np.empty((3, 1), np.int64), np.empty((3, 1), np.int64)
    size = pair_loops._write_pairs(
        names, arrays[3], arrays[4], np.array(bounds, np.int32), np.full(5, names.ctypes.data), np.full(5, 8),
        np.array([array[:2] for array in arrays[:3]], np.int32), np.array(valid)[:, None],
        pair_loops.OWN_NAMES.ctypes.data, pair_loops.OWN_BOUNDS, out, np.empty(2, np.int32), begins, ends,
    )  # fmt: skip

    def text(column: list[int], row: int) -> bytes | None:
        start, stop = column[row : row + 2]
        return b"KEYSTAGS"[start:stop] if 0 <= start <= stop <= 8 else None

    own, written, found = (b"KEYS", b"TAGS", b"UNIQ_KEY"), [], set()
    for pair in range(*bounds) if 0 <= bounds[0] <= bounds[1] <= 2 else []:
        name = text(columns[3], pair)
        number = own.index(name) if name in own else None
        given_text = number is not None and valid[number]
        written += [name, text(columns[number], 0) if given_text else text(columns[4], pair)]
        found.add(name)
    for number, name in enumerate(own):
        if valid[number] and name not in found:
            written += [name, text(columns[number], 0)]
    if None in written or not 0 <= bounds[0] <= bounds[1] <= 2:
        assert size == -1
    else:
        pairs = [name + b"\1" + value for name, value in zip(written[::2], written[1::2], strict=True)]
        assert out[:size].tobytes() == b"\2".join(pairs)


def test_pairs_that_find_no_room_are_refused() -> None:
    keys = pa.array(["k" * 90])
    names, values = pa.array(["KEYS"] * 9), pa.array(["v"] * 9)
    none = pa.nulls(1, pa.string())
    assert (
        pair_loops.stored(names, values, np.array([0, 9], np.int32), (keys, none, none), np.zeros(1, np.int32)) is None
    )
