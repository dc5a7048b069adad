"""A process recovers a store once; the walk of a growing log resumes at its known end, any other at the start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.rocketmq.disk.directory import list_store
from storage_core.rocketmq.recovery import recovery
from storage_core.rocketmq.recovery.recovery import recover
from storage_core.rocketmq.recovery.recovery_cache import cached_verdict
from storage_core.rocketmq.recovery.verdict import Verdict
from storage_core.store import ScanRequest
from tests.golden.archive import unpack
from tests.support.bytes_read import counted_reads
from tests.support.replaced_stores import REPLACED, crashed_store, write_over

NAME = "broker-killed-4.9.3"


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, Path]:
    """A killed broker's store as it was some records earlier, and as it is."""
    later = unpack(NAME, tmp_path / "later")
    earlier = tmp_path / "earlier" / "store"
    shutil.copytree(later, earlier)
    verdict = recover(list_store(str(later)))
    file = list_store(str(earlier)).log.file_at(verdict.log_end - 1)
    assert file is not None
    _zero(Path(file.path), verdict.log_end - file.base_offset - 60_000)
    return earlier, later


def _zero(path: Path, start: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(len(data) - start))


def _same(one: Verdict, other: Verdict) -> bool:
    ends = [(v.log_end, {key: queue.stop for key, queue in v.queues.items()}) for v in (one, other)]
    return ends[0] == ends[1]


def test_a_grown_log_is_walked_on_and_gives_the_verdict_of_a_whole_walk(
    grown: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = grown
    first = cached_verdict(list_store(str(earlier)), None)
    write_over(earlier, later)
    reads = counted_reads(monkeypatch)
    second = cached_verdict(list_store(str(earlier)), None)
    resumed = sum(reads)
    reads.clear()
    whole = recover(list_store(str(later)))
    assert first.log_end < second.log_end
    assert _same(second, whole)
    assert resumed < sum(reads)


def test_a_queue_that_lost_entries_meanwhile_gets_them_again(grown: tuple[Path, Path]) -> None:
    """As after a power failure of the broker's machine, while another machine continues to read the store."""
    earlier, later = grown
    cached_verdict(list_store(str(earlier)), None)
    for path in (later / "consumequeue").glob("*/*/*"):
        _zero(path, 20)
    write_over(earlier, later)
    found, whole = cached_verdict(list_store(str(earlier)), None), recover(list_store(str(later)))
    assert whole.replays
    assert _same(found, whole)
    assert [(replay.start, replay.stop) for replay in found.replays] == [
        (replay.start, replay.stop) for replay in whole.replays
    ]


def test_an_unchanged_store_is_not_walked_again(grown: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, later = grown
    first = cached_verdict(list_store(str(later)), None)
    monkeypatch.setattr(recovery, "_recover_log", None)
    assert cached_verdict(list_store(str(later)), None) is first


def test_damage_in_a_known_store_is_seen(tmp_path: Path) -> None:
    store = unpack("damaged-checkpoint-lost-4.9.3", tmp_path)
    first = cached_verdict(list_store(str(store)), None)
    file = list_store(str(store)).log.file_at(first.log_end - 1)
    assert file is not None
    path, data = Path(file.path), bytearray(Path(file.path).read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    assert cached_verdict(list_store(str(store)), None).log_end == file.base_offset


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("counts", [(300, 500), (500, 300), (400, 400)])
def test_a_store_replaced_under_the_same_path_is_a_new_store(tmp_path: Path, how: str, counts: tuple[int, int]) -> None:
    """Two stores with equal file names, sizes and times: a verdict on the first does not apply to the second."""
    store, other = (
        crashed_store(tmp_path / name, size, count) for name, size, count in zip("ab", (90, 131), counts, strict=True)
    )
    names = [sorted((p.relative_to(s), p.stat().st_size) for p in s.rglob("*")) for s in (store, other)]
    assert names[0] == names[1]
    first = cached_verdict(list_store(str(store)), None)
    expected = recover(list_store(str(other)))
    assert first.log_end != expected.log_end
    REPLACED[how](store, other)
    assert _same(cached_verdict(list_store(str(store)), None), expected)


@pytest.mark.parametrize("how", REPLACED)
def test_a_lookup_uses_the_index_of_the_store_that_is_there(tmp_path: Path, how: str) -> None:
    store, other = (crashed_store(tmp_path / name, size, 300) for name, size in zip("ab", (90, 131), strict=True))
    wanted = ScanRequest(columns=("body",), keys=("ORD-0000000123",))
    with open_store(str(store)) as opened:
        for size in (90, 131):
            batches = [batch for part in opened.snapshot().plan(wanted) for batch in part.read()]
            assert [len(body) for batch in batches for body in batch["body"].to_pylist()] == [size]
            if size == 90:
                REPLACED[how](store, other)
