"""Damaged logs of quorum queues: what a node handles itself is handled alike, the rest is reported by position."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from storage_core.errors import CorruptionError, DataLossError, OptionError
from storage_core.files import system
from storage_core.formats.rabbitmq.quorum import wal
from storage_core.rabbitmq import open_store
from storage_core.rabbitmq.quorum.directory import list_queues
from storage_core.rabbitmq.quorum.snapshot import QuorumSnapshot
from storage_core.store import EARLIEST, Mode, OffsetBound, ScanRequest
from tests.rabbitmq import quorum_golden as golden
from tests.support.rabbitmq_damage import edit

NAME = "q06_snapshot_restart"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A queue with twelve segments, whose state is known from the log alone."""
    return golden.unpack(NAME, tmp_path)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("2F_*/*.segment"))


def refused(folder: Path) -> str:
    with pytest.raises(CorruptionError) as caught:
        golden.rows(folder)
    text = str(caught.value)
    assert "\n" not in text
    return text


def reported(folder: Path) -> list[tuple[str, int]]:
    with open_store(str(folder)) as store:
        return [(finding.file, finding.position) for finding in store.verify()]


def test_a_lost_segment_is_a_gap(folder: Path) -> None:
    segments(folder)[5].unlink()
    assert "00000007.segment at 2056: queue t: entry 320 of the raft log is missing; the next one is 384" in refused(
        folder
    )
    before = golden.rows(folder, mode=Mode.DROPMALFORMED)
    assert max(row["raftIndex"] for row in before) < 320
    shown = golden.rows(folder, mode=Mode.PERMISSIVE)
    assert [row["position"] for row in shown if row["corruption"]] == [2056]
    assert len(shown) == len(before) + 1
    assert [file for file, _ in reported(folder)] == [f"{segments(folder)[5].parent.name}/00000007.segment"]


def test_a_log_that_begins_too_late_is_a_gap(folder: Path) -> None:
    segments(folder)[0].unlink()
    assert "entry 0 of the raft log is missing; the next one is 64" in refused(folder)
    assert golden.rows(folder, mode=Mode.DROPMALFORMED) == []


@pytest.mark.parametrize("lost", [1, 4000])
def test_a_cut_segment(lost: int, folder: Path) -> None:
    path = segments(folder)[5]
    os.truncate(path, path.stat().st_size - lost)
    assert "reaches beyond the end of the segment" in refused(folder)
    before = golden.rows(folder, mode=Mode.DROPMALFORMED)
    assert 256 < max(row["raftIndex"] for row in before) < 384
    assert reported(folder)


@pytest.mark.parametrize("number", [5, -1])
def test_a_flipped_bit_of_an_entry(number: int, folder: Path) -> None:
    path = segments(folder)[number]
    edit(path, lambda data: data.__setitem__(len(data) - 20, data[-20] ^ 1))
    assert f"{path.name} at " in refused(folder)
    assert "queue t: the entry fails its checksum" in refused(folder)
    assert [file for file, _ in reported(folder)] == [f"{path.parent.name}/{path.name}"]


def test_an_index_that_reaches_into_the_data(folder: Path) -> None:
    """If the header says so, a real node takes the data after a full index for entries, which it never needs."""
    whole = golden.rows(folder)
    first = segments(folder)[0]
    edit(first, lambda data: data.__setitem__(6, data[6] ^ 32))
    assert golden.rows(folder) == whole
    last = segments(folder)[-1]
    edit(last, lambda data: data.__setitem__(8 + 16, 1))
    assert "reaches beyond the end of the segment" in refused(folder)
    assert golden.rows(folder, mode=Mode.DROPMALFORMED)


def test_a_record_of_an_unknown_writer(tmp_path: Path) -> None:
    """A real node does not start; the records before this one are read if damage is left out."""
    folder = golden.unpack("q01_clean", tmp_path)
    whole = golden.rows(folder)
    (path,) = folder.glob("*.wal")
    data = path.read_bytes()
    with open_store(str(folder)) as store:
        entries = [row for batch in store.view("raft") for row in batch.to_pylist()]
    last = max(entry["position"] for entry in entries if entry["command"] == "enqueue")
    at = last - wal.KNOWN_SIZE
    assert data[at] & 0xC0 == wal.KNOWN
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert f"{path.name} at {at}: " in refused(folder)
    assert "a record of a writer that the file does not name" in refused(folder)
    assert golden.rows(folder, mode=Mode.DROPMALFORMED) == [row for row in whole if row["position"] < last]
    assert (path.name, at) in reported(folder)


@pytest.mark.parametrize("harm", ["cut", "size"])
def test_a_last_record_that_is_not_whole_is_reported(harm: str, tmp_path: Path) -> None:
    """A real node starts without it; if the size of a record is too large, also without everything that follows."""
    folder = golden.unpack("q01_clean", tmp_path)
    whole = golden.rows(folder)
    (path,) = folder.glob("*.wal")
    with open_store(str(folder)) as store:
        entries = sorted(row["position"] for batch in store.view("raft") for row in batch.to_pylist())
    at = entries[-1 if harm == "cut" else len(entries) // 2] - wal.KNOWN_SIZE
    size = path.stat().st_size
    if harm == "cut":
        size -= 7
        os.truncate(path, size)
    else:
        edit(path, lambda data: data.__setitem__(at + 7, data[at + 7] ^ 0x10))
    assert {row["position"] for row in golden.rows(folder)} == {
        row["position"] for row in whole if row["position"] < at
    }
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
        snapshot = store.snapshot()
        snapshot.queues()
        (warning,) = snapshot.warnings()
    assert (finding.file, finding.position, finding.length) == (path.name, at, size - at)
    assert finding.effect == "starts; what is named is not served"
    assert f"at {at}: the last record is not whole; a node drops its {size - at} bytes" in warning


FLAWED_CONFIGS = {
    "queue": (b'queue_resource => {resource,<<"/">>,queue,<<"t">>}', b'<<"t">>', b'<<"v">>', "two names"),
    "vhost": (b'queue_resource => {resource,<<"/">>,queue,<<"t">>}', b'<<"/">>', b'<<"o">>', "two names"),
    "server": (b"  id => {'%2F_t'", b"%2F_t", b"%2F_v", "two names"),
    "members": (b"initial_members => [{'%2F_t'", b"%2F_t", b"%2F_v", "two names"),
    "uid": (b'  tick_timeout => 5000,uid => <<"2F_T', b"2F_T", b"2F_V", "its folder is another one's"),
    "module": (b"{module,rabbit_fifo", b"fifo", b"fifn", "another machine than that of a quorum queue"),
    "tag": (b"{module,rabbit_fifo", b"module", b"modulf", "another machine than that of a quorum queue"),
    "cluster": (b"  cluster_name =>", b"_name", b"_namf", "the config has no cluster_name"),
    "log": (b"  log_init_args =>", b"args", b"argt", "the config has no log_init_args"),
    "folder": (b"#{data_dir =>", b"_dir", b"_dis", "the config has no data_dir"),
    "names": (b"  names =>", b"names", b"namet", "the config has no names"),
    "tables": (b"open_mem_tbls =>", b"tbls", b"tblt", "the config has no open_mem_tbls"),
    "machine": (b"  machine =>", b"machine", b"lachine", "another machine than that of a quorum queue"),
}


@pytest.mark.parametrize("case", FLAWED_CONFIGS)
def test_a_config_that_a_node_does_not_start_from(case: str, folder: Path) -> None:
    """A real node does not serve such a queue. All of it is read under its name if damage is left out."""
    whole = golden.rows(folder)
    place, old, new, reason = FLAWED_CONFIGS[case]
    (config,) = folder.glob("2F_*/config")
    data = config.read_bytes()
    assert data.count(place) == 1
    config.write_bytes(data.replace(place, place.replace(old, new)))
    assert f"{reason}; option mode=DROPMALFORMED reads its messages all the same" in refused(folder)
    assert golden.rows(folder, mode=Mode.DROPMALFORMED) == whole
    assert [file for file, _ in reported(folder)] == [f"{config.parent.name}/config"]


def test_no_flipped_bit_of_a_config_changes_what_is_read(folder: Path) -> None:
    whole = golden.rows(folder)
    (config,) = folder.glob("2F_*/config")
    data, draw = config.read_bytes(), random.Random(5)
    for bit in draw.sample(range(8 * len(data)), 120):
        edit(config, lambda data: data.__setitem__(bit // 8, data[bit // 8] ^ 1 << bit % 8))  # noqa: B023
        with suppress(CorruptionError):
            assert golden.rows(folder) == whole, bit
        assert golden.rows(folder, mode=Mode.DROPMALFORMED) in (whole, []), bit
        config.write_bytes(data)


def test_without_write_ahead_logs_the_segments_are_read(folder: Path) -> None:
    for path in folder.glob("*.wal"):
        path.unlink()
    assert len(golden.rows(folder)) == 120
    assert reported(folder) == []


@pytest.mark.parametrize("harm", ["gone", "empty", "cut"])
@pytest.mark.parametrize("name", ["q26_random_a", "q01_clean"], ids=["in segments", "in the write-ahead log"])
def test_a_queue_whose_config_is_lost_is_reported(harm: str, name: str, tmp_path: Path) -> None:
    """A real node starts, serves the other queues, and reports this one as down."""
    folder = golden.unpack(name, tmp_path)
    whole = golden.rows(folder)
    assert bool(segments(folder)) == (name == "q26_random_a")
    queue = next(queue for queue in list_queues(str(folder))[0] if queue.name[1] == whole[-1]["queue"])
    config = folder / queue.folder / "config"
    if harm == "gone":
        config.unlink()
    else:
        os.truncate(config, 0 if harm == "empty" else 100)
    assert f"{queue.folder}/config at " in refused(folder)
    others = [row for row in whole if row["queue"] != queue.name[1]]
    assert len(others) < len(whole)
    assert golden.rows(folder, mode=Mode.DROPMALFORMED) == others
    assert golden.rows(folder, topics=(others[0]["queue"],)) == [
        row for row in others if row["queue"] == others[0]["queue"]
    ]
    assert [row["corruption"] is not None for row in golden.rows(folder, mode=Mode.PERMISSIVE)].count(True) == 1
    assert [file for file, _ in reported(folder)] == [f"{queue.folder}/config"]


@pytest.mark.parametrize("backwards", [False, True])
def test_lost_configs_are_listed_by_folder(backwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever order the file system lists the folders; the first of them ends a read."""
    folder = golden.unpack("v5_random", tmp_path)
    configs = sorted(folder.glob("*/config"))
    assert len(configs) > 1
    for config in configs:
        os.truncate(config, 0)
    listed = sorted(system.entries(str(folder)), key=lambda entry: entry.name, reverse=backwards)
    monkeypatch.setattr(system, "entries", lambda path: iter(listed))
    assert [damage.file for damage in list_queues(str(folder))[1]] == [f"{path.parent.name}/config" for path in configs]


def kept_below_the_snapshot(folder: Path) -> tuple[Path, int, int]:
    """A segment of a queue of 4.3, the position in it of a message that the snapshot keeps, and its raft index."""
    row = next(
        row for row in golden.rows(folder, topics=("q1",))
        if row["file"].endswith(".segment") and row["raftIndex"] < 20
    )  # fmt: skip
    return folder / row["file"], row["position"], row["raftIndex"]


def test_a_damaged_entry_that_a_snapshot_keeps(tmp_path: Path) -> None:
    """One message is damaged; the log continues from the snapshot."""
    folder = golden.unpack("v8_random", tmp_path)
    whole = golden.rows(folder, topics=("q1",))
    segment, position, index = kept_below_the_snapshot(folder)
    data = bytearray(segment.read_bytes())
    data[position + 9] ^= 1
    segment.write_bytes(data)
    text = refused(folder)
    assert f"{segment.name} at " in text
    assert "queue q1: the entry fails its checksum; option mode=DROPMALFORMED" in text
    assert text.endswith(" and reads the others")
    left = golden.rows(folder, topics=("q1",), mode=Mode.DROPMALFORMED)
    assert left == [row for row in whole if row["raftIndex"] != index]
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
    assert (finding.file, finding.effect) == (
        f"{segment.parent.name}/{segment.name}", "delivers the message as it is",
    )  # fmt: skip


def test_a_lost_segment_that_a_snapshot_needs(tmp_path: Path) -> None:
    """Its messages are missing, and nothing else."""
    folder = golden.unpack("v8_random", tmp_path)
    whole = golden.rows(folder, topics=("q1",))
    segment, _, _ = kept_below_the_snapshot(folder)
    lost = [row["raftIndex"] for row in whole if row["file"] == f"{segment.parent.name}/{segment.name}"]
    segment.unlink()
    assert "its entry is not in the raft log any more" in refused(folder)
    left = golden.rows(folder, topics=("q1",), mode=Mode.DROPMALFORMED)
    assert left == [row for row in whole if row["raftIndex"] not in lost]
    shown = golden.rows(folder, topics=("q1",), mode=Mode.PERMISSIVE)
    assert sum(row["corruption"] is not None for row in shown) == len(lost) > 0
    with open_store(str(folder)) as store:
        (finding,) = store.verify()
    assert finding.file == segment.parent.name
    assert finding.reason.startswith(f"{len(lost)} of the entries {min(lost)} to ")


@pytest.mark.parametrize("mode", Mode)
def test_a_log_that_a_node_moves_while_it_is_read_is_no_damage(tmp_path: Path, mode: Mode) -> None:
    """Counted as damage, its entries would be left out: messages lost, and acknowledged ones back."""
    root = golden.unpack("v8_random", tmp_path)
    with open_store(str(root)) as store:
        snapshot = store.snapshot()
        assert isinstance(snapshot, QuorumSnapshot)
        assert snapshot.wals.parts
        for log in root.glob("*.wal"):
            log.rename(f"{log}.moved")
        with pytest.raises(DataLossError, match=r"\.wal at \d+: the file vanished while the store was read"):
            list(snapshot.read(ScanRequest(mode=mode)))


def test_a_lost_config_beside_a_damaged_wal(tmp_path: Path) -> None:
    """No other file may tell that the queue had entries; without a word, the folder would be read as empty."""
    folder = golden.unpack("v5_giving_way", tmp_path)
    assert golden.rows(folder)
    for name in ("00000001.wal", *(path.name + "/config" for path in folder.glob("2F_*"))):
        edit(folder / name, lambda data: data.__setitem__(slice(0, 64), bytes(64)))
    assert "/config at 0: " in refused(folder)
    assert any(file.endswith("/config") for file, _ in reported(folder))


def test_offsets_of_queues_of_one_name(folder: Path) -> None:
    """Each virtual host's queue counts its own."""
    with open_store(str(folder)) as store:
        snapshot = store.snapshot()
        snapshot.repeated_topics = frozenset({"t"})
        with pytest.raises(OptionError, match="'startingOffsets' = 't': several queues have this name"):
            snapshot.plan(ScanRequest(start=OffsetBound(EARLIEST, {("t", 0): 500})))
