"""External terms, Erlang text, DETS, disk logs, ETS dumps, names: round trips, real bytes, the documented facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import dets, disk_log, erlang_text, ets_dump
from storage_core.formats.rabbitmq.erlang import external_term as et
from storage_core.rabbitmq.disk import recovery_terms
from storage_core.rabbitmq.index.verdict import verdict_on
from tests.rabbitmq import golden

ATOMS = st.text(st.characters(codec="utf-8"), max_size=20).map(et.Atom)
SCALARS = st.one_of(
    ATOMS,
    st.integers(-(1 << 2100), 1 << 2100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=20),
)
KEYS = st.one_of(ATOMS, st.integers(), st.binary(max_size=5))
TERMS: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.lists(st.integers(0, 255), max_size=8),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: 1 is not 1.0, an atom is not a text."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict):
        return all(same(left[key], right[key]) for key in left)
    return not isinstance(left, list | tuple) or all(map(same, left, right))


@given(TERMS)
@settings(deadline=None)
def test_external_terms(term: Any) -> None:
    assert same(et.decode(et.encode(term)), term)


def test_keys_that_are_no_keys_in_python() -> None:
    key = [b"a", {b"b": 1}]
    inner = {et.Opaque(et.encode(key)[1:]): [1, b"c"], b"plain": {}}
    for _ in range(60):
        inner = {et.Opaque(et.encode(key)[1:]): inner}
    assert et.decode(et.encode(inner)) == inner
    assert et.decode(et.encode({et.Opaque(et.encode((key, 1))[1:]): 2})) == {et.Opaque(et.encode((key, 1))[1:]): 2}


@given(TERMS, st.data())
@settings(deadline=None)
def test_damaged_terms_are_errors_with_a_place(term: Any, data: st.DataObject) -> None:
    raw = bytearray(et.encode(term))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del raw[data.draw(st.integers(0, len(raw))) :]
    assert 0 <= place_of_error(bytes(raw)) <= len(raw)


def place_of_error(raw: bytes) -> int:
    """The position at which the decoder fails; the end if it does not."""
    try:
        et.decode(raw)
    except FormatError as error:
        return error.position
    return len(raw)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("836400046e6f6e65", et.Atom("none")),
        ("8377046e6f6e65", et.Atom("none")),
        ("836b0003010203", [1, 2, 3]),
        ("836a", []),
        ("8362ffffffff", -1),
        ("836e0800ffffffffffffffff", 2**64 - 1),
        ("8368026400026f6b6d00000001ff", (et.Atom("ok"), b"\xff")),
        ("8374000000016101610261", None),
    ],
)
def test_known_bytes(text: str, term: Any) -> None:
    raw = bytes.fromhex(text)
    if term is None:
        with pytest.raises(FormatError):
            et.decode(raw)
    else:
        assert same(et.decode(raw), term)


@given(TERMS)
@settings(deadline=None)
def test_erlang_text(term: Any) -> None:
    assert same(erlang_text.parse(erlang_text.render(term) + "."), [term])


def test_erlang_text_as_people_write_it() -> None:
    text = "%% a comment\n{config, #{durable => true, env => [{a, -1.5e3}, {'B c', infinity}]}}.\n"
    text += '<<"ab",1>>. "x\\n". $a.'
    assert erlang_text.parse(text) == [
        ("config", {"durable": "true", "env": [("a", -1500.0), ("B c", "infinity")]}), b"ab\1", [120, 10], 97,
    ]  # fmt: skip
    with pytest.raises(FormatError, match="expected, found 'b'"):
        erlang_text.parse("{a b}.")


def test_names() -> None:
    assert paths.vhost_directory(b"/") == "628WB79CIFDYO9LJI6DKMI09L"
    assert paths.queue_directory(b"/", b"a.small") == "AX95FFVYZKUYIGTAAYV54X3IH"
    assert paths.queue_directory(b"/", "q ünïcödé ☃/..".encode()) == "BZFH73Q22ZYTSHX6DDXUMVIYG"
    assert paths.queue_directory(b"/", b"e.prio", 3) == "A7KHZ4V2RZCMGLRU5I05SS06G"
    assert [paths.number_of(name, ".idx") for name in ("0.idx", "12.idx", "01.idx", "1.rdq", "x.idx", "1.idx.bak")] == [
        0, 12, None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("name", golden.NAMES)
def test_small_files_of_real_stores(name: str, tmp_path: Path) -> None:
    stubs = 0
    for path in golden.unpack(name, tmp_path).rglob(".*"):
        if path.name == ".config":
            assert paths.encode_config(paths.parse_config(path.read_bytes())) == path.read_bytes()
        elif path.name == ".queue_name":
            stub = paths.parse_stub(path.read_bytes())
            assert paths.encode_stub(stub) == path.read_bytes()
            assert path.parent.name == paths.queue_directory(stub.vhost, stub.queue, stub.priority)
            stubs += 1
    assert stubs


@pytest.mark.parametrize("name", golden.NAMES)
def test_tables_of_real_stores(name: str, tmp_path: Path) -> None:
    vhosts = list(golden.unpack(name, tmp_path).iterdir())
    assert vhosts
    for vhost in vhosts:
        data = (vhost / "recovery.dets").read_bytes()
        terms = recovery_terms.decode(data)
        assert len(dets.decode(data)) == len(terms) == int.from_bytes(data[32:36], "big")
        assert recovery_terms.decode(recovery_terms.encode(terms.values())) == terms
        # A table that was not closed properly is read by searching for its collections, with the same result.
        assert recovery_terms.decode(data[:8] + bytes(4) + data[12:]) == terms
        store = vhost / "msg_store_persistent"
        if not (store / "clean.dot").exists():
            continue
        rows = ets_dump.decode_index((store / "msg_store_index.ets").read_bytes())
        summary = ets_dump.decode_summary((store / "file_summary.ets").read_bytes())
        assert (ets_dump.decode_index(ets_dump.encode_index(rows)) == rows).all()
        assert (ets_dump.decode_summary(ets_dump.encode_summary(summary)) == summary).all()
        live = rows[rows["references"] > 0]
        for file, valid, _ in summary.tolist():
            assert int(live["size"][live["file"] == file].sum()) == valid
        clean = erlang_text.parse((store / "clean.dot").read_text())
        assert dict(clean)["client_refs"] == sorted(t.client for t in terms.values() if t.client is not None)
        text = "".join(erlang_text.render(term) + ".\n" for term in clean)
        assert text == (store / "clean.dot").read_text()


def real_table(folder: Path) -> bytes:
    """A `recovery.dets` of a node with one queue, whose collection is at 5432."""
    return (golden.unpack("s7_gc_clean", folder) / golden.DEFAULT_VHOST / "recovery.dets").read_bytes()


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (15, 2, "the header has another MD5"),
        (170, 0, "the header has another MD5"),
        (11, 2, "2 is not a known way of closing a table"),
        (5435, 0xCE, "no active collection: size 206"),
        (5437, 0, "no active collection"),
        (5443, 0xFF, "an object of 255 bytes"),
        (5444, 0, "an external term starts with byte 131"),
        (5446, 0, "an object without a key"),
        (313, 1, "the first part lies at 66872"),
    ],
)
def test_tables_of_which_no_node_takes_the_terms(at: int, value: int, text: str, tmp_path: Path) -> None:
    data = bytearray(real_table(tmp_path))
    data[at] = value
    with pytest.raises(FormatError, match=text):
        dets.decode(bytes(data))


@pytest.mark.parametrize("at", [320, 1345, 3392])
def test_what_no_queue_has_in_a_table_is_not_looked_at(at: int, tmp_path: Path) -> None:
    data = bytearray(real_table(tmp_path))
    assert not any(data[at : at + 4])
    data[at + 2] = 7
    assert dets.decode(bytes(data)) == dets.decode(real_table(tmp_path))


@pytest.mark.parametrize(
    ("name", "comes_up"),
    [("segments", True), ("next_seq_id", True), ("next_deliver_seq_id", True), ("persistent_ref", False),
     ("persistent_count", False), ("persistent_bytes", False)],
)  # fmt: skip
def test_terms_that_lack_something(name: str, comes_up: bool, tmp_path: Path) -> None:
    (found,) = recovery_terms.decode(real_table(tmp_path)).values()
    key, pairs = found.term()
    kept = recovery_terms.terms_of((key, [pair for pair in pairs if pair[0] != name]))
    assert (kept is not None) == comes_up
    if kept is not None:
        assert kept.segments == (None if name == "segments" else found.segments)
        following = (None if name == term else found.next_sequence_id for term in recovery_terms.NEXT_IDS)
        assert (kept.next_sequence_id, kept.next_deliver_sequence_id) == tuple(following)
        assert [pair[0] for pair in kept.term()[1]] == [pair[0] for pair in pairs if pair[0] != name]


def test_terms_of_release_4_3(tmp_path: Path) -> None:
    """Next to those of an earlier release in one table, as after an upgrade; of the two names the older one counts."""
    (found,) = recovery_terms.decode(real_table(tmp_path)).values()
    later = replace(found, version=2, next_deliver_sequence_id=3, delivery_counts={5: 2, 9: 1})
    key, pairs = later.term()
    names = [str(name) for name, _ in pairs]
    assert names[1:4] == ["next_seq_id", "redeliver_seq_id", "delivery_count"]
    assert recovery_terms.terms_of((key, pairs)) == later
    both = recovery_terms.terms_of((key, [*pairs, (et.Atom("next_deliver_seq_id"), 7)]))
    assert both == replace(later, next_deliver_sequence_id=7)
    marked = verdict_on(later, True, 2048).redelivered(np.arange(11))
    assert np.flatnonzero(marked).tolist() == [0, 1, 2, 5, 9]
    assert not verdict_on(replace(later, delivery_counts={}), True, 2048).redelivered(np.arange(3, 11)).any()


NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
@settings(deadline=None)
def test_index_dumps(rows: list[tuple[Any, ...]]) -> None:
    table = np.array(rows, ets_dump.INDEX_ROW)
    data = ets_dump.encode_index(table)
    assert ets_dump.decode_index(data).tolist() == table.tolist()
    # Each row is encoded as if alone, and the slow reader of single rows returns the same.
    starts, stops, _ = disk_log.items(data)
    for row, start, stop in zip(rows, starts[1:-1].tolist(), stops[1:-1].tolist(), strict=True):
        assert data[start:stop] == et.encode((et.Atom("msg_location"), *row))
        assert et.decode(data[start:stop]) == ("msg_location", *row)


def test_index_dumps_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.array([(bytes([n] * 16), n, 1 << n, n * n, n) for n in range(50)], ets_dump.INDEX_ROW)
    whole = ets_dump.encode_index(table)
    monkeypatch.setattr(ets_dump, "_ROWS_AT_ONCE", 7)
    assert ets_dump.encode_index(table) == whole
    assert (ets_dump.decode_index(whole) == table).all()


def test_dumps_that_are_cut_or_of_another_table() -> None:
    table = np.array([(bytes(16), 1, 2, 3, 4)], ets_dump.INDEX_ROW)
    data = ets_dump.encode_index(table)
    with pytest.raises(FormatError, match="the dump is cut"):
        ets_dump.decode_index(data[:-1])
    with pytest.raises(FormatError, match="a dump of rabbit_msg_store_ets_index"):
        ets_dump.decode_summary(data)
    with pytest.raises(FormatError, match="not a disk log's"):
        ets_dump.decode_index(b"\7" + data[1:])
    with pytest.raises(FormatError, match="not a table of version 9"):
        dets.decode(bytes(2000))


@given(st.binary(max_size=70000))
@settings(deadline=None)
def test_long_items_of_disk_logs(body: bytes) -> None:
    terms = [et.encode(body), et.encode(body * 2)]
    data = disk_log.encode(terms)
    starts, stops, end = disk_log.items(data)
    assert [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)] == terms
    assert end == len(data)
