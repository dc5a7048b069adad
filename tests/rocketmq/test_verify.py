"""`verify` reports what is wrong in each damaged store, and nothing in an intact one, however it divides the log."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import UnsupportedFormatError
from storage_core.finding import Finding
from storage_core.rocketmq.verify import verification
from tests.golden import archive
from tests.support import rocketmq_harm as harms
from tests.support.rocketmq_files import overwrite, queue_files
from tests.support.rocketmq_harm import Harm, Kind

DAMAGED = {
    "damaged-checkpoint-lost-4.9.3": {"wrong checkpoint"},
    "damaged-flipped-body-4.9.3": {"wrong checksum"},
    "damaged-flipped-body-abort-4.9.3": {"wrong checksum", "records after the end"},
    "damaged-flipped-body-late-4.9.3": {"wrong checksum", "records after the end"},
    "damaged-index-header-4.9.3": {"unusable index file", "unindexed messages"},
    "damaged-index-lost-4.9.3": {"missing index"},
    "damaged-log-hole-4.9.3": {"missing log file"},
    "damaged-queue-file-lost-4.9.3": {"missing queue file"},
    "damaged-queue-tail-lost-abort-4.9.3": {"unlisted messages"},
    "damaged-queues-lost-4.9.3": {"unlisted messages"},
    "damaged-torn-tail-4.9.3": {"torn record", "queue entries past the end", "index entries past the end"},
    "damaged-torn-tail-abort-4.9.3": {"torn record", "queue entries past the end", "index entries past the end"},
    "damaged-zeroed-tail-abort-4.9.3": {
        "queue entries past the end",
        "index entries past the end",
        "wrong checkpoint",
    },
}
HARMLESS = {"abort_there", "empty_queue_folder", "extra_log_file", "abort_gone"}
UNSEEN = {"flipped_anywhere"}
"""A changed bit in a time, a host or a property is as valid as the original."""
MESSAGES = "mixed-4.9.3"


def found(store: Path) -> list[Finding]:
    with open_store(str(store)) as opened:
        return list(opened.verify())


def kinds(store: Path) -> set[str]:
    return {finding.kind for finding in found(store)}


@pytest.mark.parametrize("name", archive.names())
def test_fixtures(name: str, tmp_path: Path) -> None:
    store = archive.unpack(name, tmp_path)
    before = archive.fingerprint(store)
    findings = found(store)
    assert {finding.kind for finding in findings} == DAMAGED.get(name, set())
    assert archive.fingerprint(store) == before
    for finding in findings:
        assert finding.reason
        assert finding.effect
        path = store / finding.file
        assert finding.position + finding.length >= 0
        assert path.exists() or finding.kind in {
            "missing log file", "missing queue file", "missing index", "wrong checkpoint", "unlisted messages",
        }  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(harms.KINDS), key=lambda kind: kind.__name__), ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", [MESSAGES, "expired-4.9.3"])
def test_every_kind_of_harm_is_found(name: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        store = archive.unpack(name, tmp_path / str(seed))
        story = kind(store, random.Random(seed), Harm())
        findings = found(store)
        if kind.__name__ in HARMLESS or story is None:
            assert findings == [], story
        elif kind.__name__ not in UNSEEN and not hides(kind, story):
            assert findings, story
        with monkeypatch.context() as small:
            small.setattr(verification, "SPAN_SIZE", 20_000)
            again = found(store)
        assert sorted(map(repr, again)) == sorted(map(repr, findings)), story


def hides(kind: Kind, story: str) -> bool:
    """Whether damage looks like what a broker does itself.

    The first file of the log or of a queue has expired, or the checkpoint records nothing yet.
    """
    if story == "checkpoint zero":
        return True
    return kind.__name__ in ("lost_log_file", "lost_queue_file") and ("(1 of" in story or "/0 lost" in story)


Change = Callable[[Path], None]


def entry(store: Path, number: int = 3) -> tuple[Path, int]:
    path = queue_files(store)[0]
    return path, number * 20


def wrong_tags(store: Path) -> None:
    path, position = entry(store)
    overwrite(path, position + 16, b"\1\2\3\4")


def of_another_queue(store: Path) -> None:
    path, position = entry(store)
    other = next(each for each in queue_files(store) if each.parent != path.parent)
    overwrite(path, position, other.read_bytes()[position : position + 20])


def twice(store: Path) -> None:
    path, position = entry(store)
    overwrite(path, position, path.read_bytes()[position - 20 : position])


def index_chain(store: Path) -> None:
    path = sorted((store / "index").iterdir())[0]
    data = path.read_bytes()
    entries = 40 + 4 * archive.info(MESSAGES)["settings"]["maxHashSlotNum"]
    at = next(n for n in range(1, 200) if data[entries + 20 * n + 16 : entries + 20 * n + 20] != bytes(4))
    overwrite(path, entries + 20 * at + 16, bytes(4))


def index_slot(store: Path) -> None:
    path = sorted((store / "index").iterdir())[0]
    data = path.read_bytes()
    at = next(n for n in range(100) if data[40 + 4 * n : 44 + 4 * n] != bytes(4))
    overwrite(path, 40 + 4 * at, bytes(4))


def index_key(store: Path) -> None:
    """Stores another hash of the same slot."""
    path = sorted((store / "index").iterdir())[0]
    slots = archive.info(MESSAGES)["settings"]["maxHashSlotNum"]
    at = 40 + 4 * slots + 20 * 5
    (value,) = struct.unpack(">i", path.read_bytes()[at : at + 4])
    overwrite(path, at, struct.pack(">i", value - slots if value > slots else value + slots))


def stray(*parts: str) -> Change:
    def make(store: Path) -> None:
        store.joinpath(*parts).write_bytes(b"x")

    return make


def short_log(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[-1]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)


def config(store: Path) -> None:
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_bytes(b"{half")


def early_checkpoint(store: Path) -> None:
    overwrite(store / "checkpoint", 0, (1 << 60).to_bytes(8, "big"))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (wrong_tags, {"wrong queue entry"}),
        (of_another_queue, {"wrong queue entry"}),
        (twice, {"wrong queue entry"}),
        (index_chain, {"wrong index entry"}),
        (index_slot, {"wrong index entry"}),
        (index_key, {"wrong index entry", "unindexed messages"}),
        (stray("commitlog", "_SUCCESS"), {"unexpected file"}),
        (stray("index", "readme"), {"unexpected file"}),
        (stray("consumequeue", "readme"), {"unexpected file"}),
        (stray("commitlog", "mqstore-unfinished-write"), {"unfinished write"}),
        (short_log, {"wrong file length"}),
        (config, {"unreadable config file"}),
        (early_checkpoint, {"wrong checkpoint"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_wrong_thing_is_one_kind_of_finding(change: Change, wanted: set[str], tmp_path: Path) -> None:
    store = archive.unpack(MESSAGES, tmp_path)
    change(store)
    assert kinds(store) == wanted


def test_what_a_broker_does_depends_on_its_version(tmp_path: Path) -> None:
    store = archive.unpack(MESSAGES, tmp_path)
    (store / "commitlog" / "later").mkdir()
    effects = {}
    for version in ("4.9", "5.x"):
        with open_store(str(store), recovery=version) as opened:
            effects[version] = [finding.effect for finding in opened.verify()]
    assert effects == {"4.9": ["does not load the store"], "5.x": ["ignores it"]}


def test_queues_in_rocksdb_are_refused_in_one_line(tmp_path: Path) -> None:
    store = archive.unpack(MESSAGES, tmp_path)
    (store / "consumequeue" / "CURRENT").write_bytes(b"")
    with pytest.raises(UnsupportedFormatError, match="scan=log"):
        found(store)


def test_memory_does_not_grow_with_every_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has its own part of the log."""
    name, started = "damaged-flipped-body-4.9.3", set[str]()
    store = archive.unpack(name, tmp_path)
    checked_span = verification.checked_span

    def noted(*arguments: Any) -> Any:
        started.add(threading.current_thread().name)
        time.sleep(0.02)
        return checked_span(*arguments)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(64))
    monkeypatch.setattr(verification, "checked_span", noted)
    monkeypatch.setattr(verification, "SPAN_SIZE", 1 << 12)
    with open_store(str(store)) as opened:
        assert {finding.kind for finding in opened.verify()} == DAMAGED[name]
    assert len(started) == 8
