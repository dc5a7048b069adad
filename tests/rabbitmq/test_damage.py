"""Damaged files of real stores: the result in each mode, and no exception other than a named error."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, MqStoreError
from storage_core.rabbitmq import open_store
from storage_core.store import Mode, ScanRequest
from tests.rabbitmq import golden
from tests.support import version_2_harm
from tests.support.rabbitmq_damage import edit, first_record, queue_file
from tests.support.rabbitmq_harm import HARMS, LARGE, make
from tests.support.sampling import sample

pytestmark = pytest.mark.sampled

S1_ROWS, S3_ROWS = 182, 210


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return golden.unpack("s3_mixed_kill9", tmp_path) / golden.DEFAULT_VHOST


def check_modes(store: Path, rows: int, lost: int, damaged: int, where: str, reason: str) -> None:
    """FAILFAST names the position; DROPMALFORMED lacks `lost` rows; PERMISSIVE has `damaged` rows with the reason."""
    with pytest.raises(CorruptionError, match=reason) as error:
        golden.table(store)
    assert where in str(error.value)
    assert "\n" not in str(error.value)
    assert golden.table(store, mode=Mode.DROPMALFORMED).num_rows == rows - lost
    permissive = golden.table(store, mode=Mode.PERMISSIVE)
    corruptions = [text for text in permissive["corruption"].to_pylist() if text]
    assert len(corruptions) == damaged
    assert all("CorruptionError" in text and reason in text for text in corruptions)
    assert permissive.num_rows == rows - lost + damaged


def test_a_record_of_a_clean_store_without_its_marker(clean: Path) -> None:
    path, position = first_record(clean, "b.large")

    def clear(data: bytearray) -> None:
        size = int.from_bytes(data[position : position + 8], "big")
        data[position + 8 + size] = 0

    edit(path, clear)
    check_modes(clean, S1_ROWS, 1, 1, f"0.rdq at {position}: ", "the record is not the one")
    damaged = golden.table(clean, mode=Mode.PERMISSIVE).filter(
        ~golden.table(clean, mode=Mode.PERMISSIVE)["corruption"].is_null().to_numpy()
    )
    row = damaged.to_pylist()[0]
    assert (row["queue"], row["file"], row["position"]) == ("b.large", "msg_store_persistent/0.rdq", position)
    assert row["body"] is None
    assert row["exchange"] is None
    assert row["sequenceId"] is not None


def test_a_message_of_a_clean_store_that_does_not_decode(clean: Path) -> None:
    path, position = first_record(clean, "b.large")
    edit(path, lambda data: data.__setitem__(position + 26, 99))
    check_modes(clean, S1_ROWS, 1, 1, f"0.rdq at {position}: ", "cannot be decoded")


def test_a_message_file_of_a_clean_store_that_ends_early(clean: Path) -> None:
    path = clean / "msg_store_persistent" / "0.rdq"
    path.write_bytes(path.read_bytes()[:-100])
    check_modes(clean, S1_ROWS, 1, 1, "/0.idx at ", "its message is not in the message store")


def test_records_that_the_recovery_of_a_killed_store_skips(killed: Path) -> None:
    path, position = first_record(killed, "b.large")

    def clear(data: bytearray) -> None:
        size = int.from_bytes(data[position : position + 8], "big")
        data[position + 8 + size] = 0

    edit(path, clear)
    for mode in Mode:
        assert golden.table(killed, mode=mode).num_rows == S3_ROWS - 1
    with open_store(str(killed)) as store:
        snapshot = store.snapshot()
        snapshot.plan(ScanRequest())
        assert [line for line in snapshot.warnings() if "1 messages are in no message file" in line]
        listed = next(store.view("damage")).to_pylist()
    stored = [(row["file"], row["position"], row["repairable"]) for row in listed if row["kind"] == "message"]
    assert stored == [("msg_store_persistent/0.rdq", position, True)]


@pytest.mark.parametrize("tail", [bytes(70000), random.Random(5).randbytes(5000)])
def test_bytes_after_the_last_record_of_a_killed_store(killed: Path, tail: bytes) -> None:
    path = killed / "msg_store_persistent" / "0.rdq"
    path.write_bytes(path.read_bytes() + tail)
    assert golden.table(killed).num_rows == S3_ROWS


def test_a_cut_last_record_of_a_killed_store(tmp_path: Path) -> None:
    store = golden.unpack("s13_jzeros_kill9", tmp_path) / golden.DEFAULT_VHOST
    path = store / "msg_store_persistent" / "0.rdq"
    path.write_bytes(path.read_bytes()[:-100])
    assert golden.table(store).num_rows == 39


def test_an_interrupted_compaction_is_read_after_its_file(killed: Path) -> None:
    path = killed / "msg_store_persistent" / "0.rdq"
    before = golden.table(killed, columns=("queue", "sequenceId", "body"))
    found = golden.table(killed, columns=("file", "position", "location")).to_pylist()
    cut = sorted({row["position"] for row in found if row["location"] == "store"})[10]
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    path.with_name("0.rdt").write_bytes(data[cut:])
    assert golden.table(killed, columns=("queue", "sequenceId", "body")).equals(before)


@pytest.mark.parametrize("tail", [b"\x40", b"\0\0", b"\xc0\x01abc"])
def test_bytes_after_the_last_record_of_a_segment(clean: Path, tail: bytes) -> None:
    path = queue_file(clean, "a.small", "0.idx")
    position = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    check_modes(clean, S1_ROWS, 0, 1, f"0.idx at {position}: ", "a node does not start a vhost with such a segment")
    # A damaged queue does not hide the others.
    assert golden.table(clean, topics=("b.large",)).num_rows == 13


def test_a_segment_of_zeros_is_an_empty_one(clean: Path) -> None:
    path = queue_file(clean, "a.small", "0.idx")
    path.write_bytes(bytes(path.stat().st_size))
    assert golden.table(clean).num_rows == S1_ROWS - 39


def test_a_third_mark(clean: Path) -> None:
    path = queue_file(clean, "a.small", "0.idx")
    position = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes([0x40, 20, 0x40, 20]))
    check_modes(clean, S1_ROWS, 1, 1, f"0.idx at {position + 2}: ", "a third mark of relative sequence 20")


def test_a_publish_twice(clean: Path) -> None:
    path = queue_file(clean, "q ünïcödé ☃/..", "0.idx")
    data = path.read_bytes()
    path.write_bytes(data + data[:-2])
    check_modes(clean, S1_ROWS, 0, 1, f"0.idx at {len(data)}: ", "a second publish of relative sequence 0")


def test_a_journal_with_an_action_that_no_node_writes(killed: Path) -> None:
    path = queue_file(killed, "q ünïcödé ☃/..", "journal.jif")
    data = path.read_bytes()
    path.write_bytes(data + data[-8:])
    check_modes(killed, S3_ROWS, 0, 1, f"journal.jif at {len(data)}: ", "the deliver of sequence id 0 does not follow")


def test_a_journal_that_repeats_what_the_segment_says(clean: Path) -> None:
    idx = queue_file(clean, "q ünïcödé ☃/..", "0.idx")
    for name in ("clean.dot", "file_summary.ets", "msg_store_index.ets"):
        (clean / "msg_store_persistent" / name).unlink()
    (clean / "recovery.dets").unlink()
    publish = idx.read_bytes()[:-2]
    assert publish[:2] == b"\xc0\0"
    idx.with_name("journal.jif").write_bytes(bytes(8) + publish[2:] + (2 << 62).to_bytes(8, "big"))
    assert golden.table(clean, topics=("q ünïcödé ☃/..",)).num_rows == 1


def test_stale_terms_hide_messages_as_they_do_for_a_node(clean: Path, tmp_path: Path) -> None:
    other = golden.unpack("s3_mixed_kill9", tmp_path / "second") / golden.DEFAULT_VHOST
    (other / "recovery.dets").write_bytes((clean / "recovery.dets").read_bytes())
    with open_store(str(other)) as store:
        snapshot = store.snapshot()
        plan = snapshot.plan(ScanRequest(topics=("h.f3",)))
        assert not [batch for partition in plan for batch in partition.read() if batch.num_rows]
        assert any(": recovery.dets says that the queue is empty" in line for line in snapshot.warnings())
    with open_store(str(other), {"recovery": "none"}) as store:
        plan = store.snapshot().plan(ScanRequest(topics=("h.f3",)))
        assert sum(batch.num_rows for partition in plan for batch in partition.read()) == 12


def test_an_unreadable_dets_file_counts_as_an_unclean_stop(clean: Path) -> None:
    (clean / "recovery.dets").write_bytes(b"no table")
    rows = golden.table(clean, columns=("redelivered",))
    assert rows["redelivered"].to_pylist() == [True] * rows.num_rows
    assert rows.num_rows == S1_ROWS


def test_a_damaged_segment_of_version_2(tmp_path: Path) -> None:
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    path = queue_file(store, "v2.q", "1.qs")
    rows = golden.table(store, columns=("file", "position", "body")).to_pylist()
    position, body = next((row["position"], row["body"]) for row in rows if row["file"].endswith("1.qs"))
    place = path.read_bytes().index(body, position)
    edit(path, lambda data: data.__setitem__(place, data[place] ^ 1))
    check_modes(store, 1173, 1, 1, f"1.qs at {position}: ", "the stored message fails its checksum")
    assert golden.table(store, verify_crc=False).num_rows == 1173


@pytest.mark.parametrize("what", version_2_harm.HARMS)
def test_damaged_entries_of_version_2(what: str, tmp_path: Path) -> None:
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    harm = version_2_harm.HARMS[what]
    edit(queue_file(store, "v2.q", "0.qi"), harm.change)
    check_modes(store, 1173, harm.lost, 1, "/0.qi at ", "the entry of sequence id ")
    message = outcome(store, Mode.FAILFAST) or ""
    if " bytes" not in message:
        does = "leaves such messages out" if harm.lost else "reads its messages all the same"
        assert message.endswith(f"; option mode=DROPMALFORMED {does}")


def test_flipped_bits_of_entries_of_version_2(tmp_path: Path) -> None:
    """Flipping any bit of an entry's first four bytes causes an error, or results in an entry that a node may write."""
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    path = queue_file(store, "v2.q", "0.qi")
    whole = path.read_bytes()
    silent = []
    for entry in (version_2_harm.live(bytearray(whole)), version_2_harm.acknowledged(bytearray(whole))):
        for bit in range(32):
            flipped = bytearray(whole)
            flipped[entry + bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            if outcome(store, Mode.FAILFAST) is None:
                silent.append((whole[entry], bit // 8, bit % 8))
    assert silent == [(1, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 0), *((0, 3, bit) for bit in range(8))]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["s1_mixed_clean_idle", "s3_mixed_kill9", "s11_cqv2_clean"])
def test_flipped_bytes_anywhere(name: str, seed: int, tmp_path: Path) -> None:
    """With a few wrong bytes in one file a read returns rows or a named one-line error; lenient modes always rows."""
    store = golden.unpack(name, tmp_path) / golden.DEFAULT_VHOST
    chance = random.Random(seed)
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    for path in sample(chance.sample(files, min(12, len(files))), 4, f"flipped {name} {seed}"):
        before = path.read_bytes()
        damaged = bytearray(before)
        for _ in range(chance.choice([1, 1, 3, 20])):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        path.write_bytes(bytes(damaged))
        for mode in Mode:
            error = outcome(store, mode)
            assert error is None or mode is Mode.FAILFAST or path.name == ".config", (path, mode, error)
        path.write_bytes(before)


def outcome(store: Path, mode: Mode) -> str | None:
    """None if the store returns rows, else the named error, which is one line."""
    try:
        golden.table(store, mode=mode).validate(full=True)
    except MqStoreError as error:
        text = str(error)
        return text if "\n" not in text else pytest.fail(f"more than a line: {text}")
    return None


KINDS = {
    "0.idx": ("s1_mixed_clean_idle", "queues/AX95FFVYZKUYIGTAAYV54X3IH/0.idx"),
    "journal.jif": ("s3_mixed_kill9", "queues/AX95FFVYZKUYIGTAAYV54X3IH/journal.jif"),
    "0.rdq": ("s1_mixed_clean_idle", "msg_store_persistent/0.rdq"),
    "0.rdq of a killed store": ("s3_mixed_kill9", "msg_store_persistent/0.rdq"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_cut_anywhere(kind: str, tmp_path: Path) -> None:
    """A cut adds and changes no message: each mode returns some of the original rows, or one line with the file."""
    name, relative = KINDS[kind]
    store = golden.unpack(name, tmp_path) / golden.DEFAULT_VHOST
    path = store / relative
    whole, columns = path.read_bytes(), ("queue", "guid", "body", "rawProperties")
    known = {tuple(row.values()) for row in golden.table(store, columns=columns, include_acked=True).to_pylist()}
    chance, outcomes = random.Random(1), set()
    for size in sorted({0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(6))}):
        path.write_bytes(whole[:size])
        error = outcome(store, Mode.FAILFAST)
        assert error is None or path.name in error or "0.idx" in error, error
        outcomes.add(error is None)
        for mode in (Mode.DROPMALFORMED, Mode.PERMISSIVE):
            requested = (*columns, "corruption") if mode is Mode.PERMISSIVE else columns
            found = golden.table(store, mode=mode, columns=requested).to_pylist()
            corruptions = [row.pop("corruption", None) for row in found]
            good = [tuple(row.values()) for row, text in zip(found, corruptions, strict=True) if text is None]
            assert set(good) <= known
            assert len(set(good)) == len(good)
            assert all("\n" not in text for text in corruptions if text)
            assert (not any(corruptions)) == (error is None) or mode is Mode.DROPMALFORMED, (size, error)
    # A node cuts the tails of journals and of a killed store's message files; it finds the other files damaged.
    assert (False in outcomes) == (kind in ("0.idx", "0.rdq")), outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_each_bit_of_a_record_flipped(kind: str, tmp_path: Path) -> None:
    """With any bit of the first record's head flipped: rows, or a one-line error with the file; lenient modes, rows."""
    name, relative = KINDS[kind]
    store = golden.unpack(name, tmp_path) / golden.DEFAULT_VHOST
    path = store / relative
    whole = path.read_bytes()
    for bit in sample(range(8 * 44), 16, f"bits {kind}"):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        error = outcome(store, Mode.FAILFAST)
        assert error is None or path.name in error or "0.idx" in error, (bit, error)
        assert outcome(store, Mode.DROPMALFORMED) is None
        assert outcome(store, Mode.PERMISSIVE) is None


@pytest.mark.parametrize("name", [".config", ".vhost", ".queue_name"])
def test_a_short_file_of_a_gigabyte_takes_no_memory(name: str, clean: Path) -> None:
    path = min(clean.rglob(name))
    open_store(str(clean)).close()  # imports modules, whose memory must not be counted
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        if name == ".queue_name":
            with open_store(str(clean)) as store:
                assert path.parent.name in store.snapshot().named()
        else:
            with pytest.raises(CorruptionError, match=f"{name}.* more than 1,048,576 bytes"):
                open_store(str(clean))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_notes_of_a_stop_under_another_header_are_forgotten(clean: Path) -> None:
    """A node removes such a table, too: every message is then redelivered."""
    before = golden.table(clean)
    edit(clean / "recovery.dets", lambda data: data.__setitem__(170, data[170] ^ 1))
    after = golden.table(clean)
    assert set(before["redelivered"].to_pylist()) == {False, True}
    assert set(after["redelivered"].to_pylist()) == {True}
    assert after.drop_columns("redelivered").equals(before.drop_columns("redelivered"))
    with open_store(str(clean)) as store:
        (finding,) = store.verify()
    assert finding.reason == "recovery.dets cannot be read (the header has another MD5)"


def test_a_place_with_another_message_of_the_same_length_is_damage(tmp_path: Path) -> None:
    store = make(tmp_path / "store", "v", clean=True)
    before = [row["body"] for row in golden.table(store, topics=(LARGE,)).to_pylist()]
    HARMS["clean: two places of the table are swapped"].apply(store)
    with pytest.raises(CorruptionError, match="the record is not the one that the message store's index names here"):
        golden.table(store)
    after = [row["body"] for row in golden.table(store, topics=(LARGE,), mode=Mode.DROPMALFORMED).to_pylist()]
    assert len(after) == len(before) - 2
    assert [body for body in before if body in after] == after


@pytest.mark.parametrize(
    "lacking", [("next_seq_id",), ("next_deliver_seq_id",), ("next_seq_id", "next_deliver_seq_id")]
)
def test_terms_without_the_next_ids(lacking: tuple[str, ...], clean: Path) -> None:
    """A node, too, uses the end of the last segment as the next id, and that as the next id to be delivered."""
    before = golden.table(clean)
    edit(clean / "recovery.dets", lambda data: _without(data, lacking))
    after = golden.table(clean)
    fewer = before["redelivered"].to_pylist() if "next_deliver_seq_id" not in lacking else [True] * len(before)
    assert after["redelivered"].to_pylist() == fewer
    assert after.drop_columns("redelivered").equals(before.drop_columns("redelivered"))
    with open_store(str(clean)) as store:
        assert list(store.verify()) == []


def _without(data: bytearray, keys: tuple[str, ...]) -> None:
    for key in keys:
        atom = b"\0" + bytes((len(key),)) + key.encode()
        assert atom in data
        data[:] = data.replace(atom, atom[:-1] + b"_")
