"""Following a node's streams while they grow: every message is read once, whatever retention deletes."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, DataLossError, OptionError, UnsupportedFormatError
from storage_core.rabbitmq.stream_queues import tail as tails
from storage_core.rabbitmq.stream_queues.growing_snapshot import GrowingSnapshot
from storage_core.store import LATEST, Mode, OffsetBound, QueueKey, ScanRequest
from storage_core.stream.admission import by_bytes, by_count
from storage_core.stream.offsets import StreamOffset, resumed
from tests.golden.archive import fingerprint
from tests.rabbitmq import stream_golden as golden
from tests.rabbitmq.played_stream import Played

Rows = list[dict[str, Any]]


def planned(snapshot: GrowingSnapshot, ranges: dict[QueueKey, tuple[int, int]], **request: Any) -> Rows:
    plan = [pickle.loads(pickle.dumps(piece)) for piece in snapshot.plan_ranges(ScanRequest(**request), ranges)]
    return [row for piece in plan for batch in piece.read() for row in batch.to_pylist()]


def ends(snapshot: GrowingSnapshot) -> dict[QueueKey, int]:
    return {key: stop for key, (_, stop) in snapshot.positions.items()}


@pytest.mark.parametrize("limit", ["none", "count", "bytes"])
def test_every_message_is_read_once(limit: str, tmp_path: Path) -> None:
    """Messages are read in the order of offsets, in ranges that end inside chunks and segments."""
    played, draw = Played("s10_torn_segment", tmp_path), random.Random(16)
    whole = golden.rows(played.source)
    played.grow(1)
    found: Rows = []
    with open_store(str(played.target)) as store, store.follow() as tail:
        snapshot = tail.settled()
        positions = snapshot.starts(ScanRequest())
        assert tail.look() is snapshot
        while played.done < len(played.steps) or positions != ends(snapshot):
            played.grow(draw.randrange(0, 4))
            snapshot = tail.look()
            stops = ends(snapshot)
            most = draw.randrange(1, 30)
            if limit == "count":
                stops = by_count(snapshot, positions, stops, most)
            if limit == "bytes":
                stops = by_bytes(snapshot, positions, stops, most * 40)
            ranges = {key: (positions[key], stop) for key, stop in stops.items()}
            batch = planned(snapshot, ranges, min_partitions=draw.choice((1, 3)))
            assert len(batch) == sum(snapshot.count(key, *span) for key, span in ranges.items())
            assert limit != "count" or len(batch) <= most
            found += batch
            positions = stops
    assert [(row["streamOffset"], row["body"]) for row in found] == [(r["streamOffset"], r["body"]) for r in whole]


def test_where_it_starts(tmp_path: Path) -> None:
    folder = golden.unpack("s10_torn_segment", tmp_path)
    found = golden.rows(folder)
    before = fingerprint(tmp_path)
    moment = found[77]["chunkTimestamp"]
    first = next(row["streamOffset"] for row in found if row["chunkTimestamp"] >= moment)
    with open_store(str(folder)) as store, store.follow() as tail:
        snapshot = tail.settled()
        ((key, (start, stop)),) = snapshot.positions.items()
        requests = {
            start: ScanRequest(), stop: ScanRequest(start=OffsetBound(LATEST)),
            found[-5]["streamOffset"]: ScanRequest(start=OffsetBound(last=5)),
            17: ScanRequest(start=OffsetBound(-2, {(key[0], 0): 17})),
            first: ScanRequest(start_ms=round(moment.timestamp() * 1000)),
        }  # fmt: skip
        assert [snapshot.starts(request) for request in requests.values()] == [{key: offset} for offset in requests]
        assert snapshot.starts(ScanRequest(topics=("later",))) == {}
        with pytest.raises(OptionError, match="RabbitMQ stores have no key index"):
            snapshot.starts(ScanRequest(keys=("a",)))
        sealed = StreamOffset("rabbitmq", {}).moved({key: 100}, snapshot)
        assert resumed(sealed.positions, tail.look(), "here", True, sealed.seals) == {key: 100}
    assert fingerprint(tmp_path) == before


def test_expired_segments(tmp_path: Path) -> None:
    """Unread messages that retention deleted are a loss, and so is a queue that is missing; the rest can be read."""
    played = Played("s10_torn_segment", tmp_path)
    whole = golden.rows(played.source)
    played.grow(len(played.steps))
    with open_store(str(played.target)) as store, store.follow() as tail:
        ((key, (_, stop)),) = tail.look().positions.items()
        played.expire()
        snapshot = tail.look()
        start = snapshot.positions[key][0]
        with pytest.raises(DataLossError, match=f"begins at {start} now, the checkpoint is at 3; "):
            resumed({key: 3}, snapshot, "here", True)
        assert resumed({key: 3}, snapshot, "here", False) == {key: start}
        rest = planned(snapshot, {key: (start, stop)})
        assert [row["streamOffset"] for row in rest] == [r["streamOffset"] for r in whole if r["streamOffset"] >= start]
        (old,) = snapshot.plan_ranges(ScanRequest(), {key: (start, stop)})
        shutil.rmtree(played.stream)
        with pytest.raises(DataLossError, match="vanished while the store was read"):
            list(old.read())
        assert tail.look().positions == {}
        with pytest.raises(DataLossError, match="is gone, the checkpoint is at 3"):
            resumed({key: 3}, tail.look(), "here", True)
        again = played.target / played.stream.name.replace("_179", "_189")
        shutil.copytree(played.folder, again)
        ((other, span),) = tail.look().positions.items()
        assert (other != key, span[0]) == (True, 0)


def test_what_a_node_cut_and_rewrote(tmp_path: Path) -> None:
    """After a power failure, offsets that were already read belong to other messages, of a later epoch."""
    played = Played("s10_torn_segment", tmp_path)
    played.grow(10)
    with open_store(str(played.target)) as store, store.follow() as tail:
        snapshot = tail.look()
        ((key, (_, stop)),) = snapshot.positions.items()
        sealed = StreamOffset("rabbitmq", {}).moved({key: stop}, snapshot)
        index = min(played.stream.glob("*.index"))
        cut = bytearray(index.read_bytes()[: 8 + 29 * 10])
        fresh = int.from_bytes(cut[8 + 29 * 7 : 16 + 29 * 7], "big")
        for number in (7, 8, 9):
            cut[8 + 29 * number + 23] += 1
        index.write_bytes(cut)
        with pytest.raises(DataLossError, match="was cut by a node and rewritten before"):
            resumed(sealed.positions, tail.look(), "here", True, sealed.seals)
        assert resumed(sealed.positions, tail.look(), "here", False, sealed.seals) == {key: fresh}
        index.write_bytes(cut[: 8 + 29 * 5])
        with pytest.raises(DataLossError, match=f"ends at .* now, the checkpoint is at {stop}"):
            resumed(sealed.positions, tail.look(), "here", True, sealed.seals)


def test_damages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable segment is reported once, where a read reaches it, also at the end of the log."""
    monkeypatch.setattr(tails, "HOLD_S", 0.05)
    played = Played("s10_torn_segment", tmp_path)
    whole = golden.rows(played.source)
    played.grow(len(played.steps))
    for number in (1, -1):
        index = sorted(played.stream.glob("*.index"))[number]
        kept = index.read_bytes()
        index.write_bytes(b"JUNK" + kept[4:])
        segment = index.with_suffix(".segment")
        chunks = segment.read_bytes()
        segment.write_bytes(chunks[:8] + b"J" + chunks[9:])
        first = int(index.stem)
        with open_store(str(played.target)) as store, store.follow() as tail:
            snapshot = tail.look()
            ((key, (start, stop)),) = snapshot.positions.items()
            assert planned(snapshot, {key: (start, first)}) == [r for r in whole if r["streamOffset"] < first]
            with pytest.raises(CorruptionError, match="an index begins with OSII"):
                planned(snapshot, {key: (first, stop)})
            parts = [planned(snapshot, {key: span}, mode=Mode.PERMISSIVE) for span in ((start, first), (first, stop))]
            assert [[bool(row["corruption"]) for row in part].count(True) for part in parts] == [0, 1]
        index.write_bytes(kept)
        segment.write_bytes(chunks)


def test_a_stream_without_a_name_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new stream is withheld until the node's tables name it; one that they never name keeps its directory's name."""
    played = Played("s01_clean", tmp_path)
    played.grow(len(played.steps))
    tables = [path for path in (tmp_path / "node").iterdir() if path.is_file()]
    kept = {path: path.read_bytes() for path in tables}
    for path in tables:
        path.write_bytes(b"\1")
    monkeypatch.setattr(tails, "NAMED_S", 1e12)
    with open_store(str(played.target)) as store, store.follow() as tail:
        assert tail.look().positions == {}
        for path, data in kept.items():
            path.write_bytes(data)
        assert [name for name, _ in tail.look().positions] == ["evénts/1"]
        for path in tables:
            path.unlink()
        assert [name for name, _ in tail.look().positions] == ["__ev__nts_1"]


def test_quorum_queues_are_refused(tmp_path: Path) -> None:
    from connector.stream.source import followed
    from tests.rabbitmq import quorum_golden

    folder = quorum_golden.unpack(quorum_golden.NAMES[0], tmp_path)
    with open_store(str(folder)) as store, pytest.raises(UnsupportedFormatError, match="quorum queues are not read"):
        followed(store)
