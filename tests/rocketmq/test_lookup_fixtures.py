"""Lookups by key, id and tag in every fixture: the result of a filtered full scan, and that of the real store.

The index files are intact, deleted, cut short, filled with noise, or not used: the result is always the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.reference.served import AS_BROKER, Row, place, read
from tests.support.sampling import sample

pytestmark = pytest.mark.sampled

FIXTURES = archive.names()
ALL = ("topic", "queueId", "queueOffset", "physicalOffset", "key", "keys", "tags", "msgId", "properties", "body")
LAST = (1 << 63) - 1


@pytest.fixture(scope="module", params=FIXTURES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    return name, archive.unpack(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def everything(store: tuple[str, Path]) -> list[Row]:
    rows = read(store[1], ScanRequest(columns=ALL, **AS_BROKER))
    assert any(row["keys"] for row in rows)
    return rows


def found(directory: Path, **fields: Any) -> list[Row]:
    rows = read(directory, ScanRequest(columns=ALL, **{**AS_BROKER, **fields}))
    return sorted(rows, key=place)


def with_key(rows: list[Row], key: str) -> list[Row]:
    return sorted((row for row in rows if key in (row["keys"] or ())), key=place)


def with_id(rows: list[Row], message_id: str) -> list[Row]:
    return sorted((row for row in rows if dict(row["properties"]).get("UNIQ_KEY") == message_id), key=place)


def some_keys(rows: list[Row], count: int) -> list[str]:
    keys = sorted({key for row in rows for key in row["keys"] or ()})
    return [*random.Random(len(rows)).sample(keys, min(count, len(keys))), "no-such-key"]


def some_ids(rows: list[Row], count: int) -> list[str]:
    ids = sorted({dict(row["properties"]).get("UNIQ_KEY", "") for row in rows} - {""})
    return random.Random(len(rows)).sample(ids, min(count, len(ids)))


def harmed(directory: Path, how: str, target: Path) -> Path:
    """A copy of the store with damaged index files; everything else is a link."""
    r = random.Random(how)
    (target / "index").mkdir(parents=True)
    for path in directory.iterdir():
        if path.name != "index":
            (target / path.name).symlink_to(path)
    for path in sorted(directory.glob("index/*")):
        if how != "deleted" and path.stat().st_size < 1 << 20:
            harm_file(path.read_bytes(), how, r, target / "index" / path.name)
    return target


def harm_file(data: bytes, how: str, r: random.Random, copy: Path) -> None:
    if how == "some deleted" and r.random() < 0.5:
        return
    if how == "cut short":
        data = data[: r.randrange(len(data))]
    if how == "noise":
        data = r.randbytes(len(data))
    if how == "noise behind the header":
        data = data[:40] + r.randbytes(len(data) - 40)
    if how == "noise here and there":
        changed = bytearray(data)
        for _ in range(max(1, len(data) // 200)):
            changed[r.randrange(len(data))] = r.randrange(1, 256)
        data = bytes(changed)
    if how == "shifted":
        data = data[:40] + data[60:] + bytes(20)
    copy.write_bytes(data)


HARMS = ("deleted", "some deleted", "cut short", "noise", "noise behind the header", "noise here and there", "shifted")


def test_keys_and_ids_are_what_a_scan_leaves(store: tuple[str, Path], everything: list[Row]) -> None:
    for key in some_keys(everything, 6):
        assert found(store[1], keys=(key,)) == with_key(everything, key)
        assert found(store[1], keys=(key,), use_index=False) == with_key(everything, key)
    for message_id in some_ids(everything, 4):
        assert found(store[1], message_ids=(message_id,)) == with_id(everything, message_id)


def test_several_at_once(store: tuple[str, Path], everything: list[Row]) -> None:
    keys = some_keys(everything, 40)
    expected = sorted((row for row in everything if set(keys) & set(row["keys"] or ())), key=place)
    assert found(store[1], keys=tuple(keys)) == expected


@pytest.mark.parametrize("how", HARMS)
def test_harmed_index_files_change_nothing(
    store: tuple[str, Path], everything: list[Row], how: str, tmp_path: Path
) -> None:
    copy = harmed(store[1], how, tmp_path / "store")
    for key in some_keys(everything, 2):
        assert found(copy, keys=(key,)) == with_key(everything, key), key
    for message_id in some_ids(everything, 1):
        assert found(copy, message_ids=(message_id,)) == with_id(everything, message_id), message_id


def test_offset_ids_in_both_forms(store: tuple[str, Path], everything: list[Row]) -> None:
    for row in random.Random(1).sample(everything, min(8, len(everything))):
        expected = sorted((r for r in everything if r["physicalOffset"] == row["physicalOffset"]), key=place)
        for prefix in ("7F00000100002A9F", "FE80" + "0" * 28 + "00002A9F"):
            assert found(store[1], message_ids=(f"{prefix}{row['physicalOffset']:016X}",)) == expected


def test_combined_with_topics_queues_and_offsets(store: tuple[str, Path], everything: list[Row]) -> None:
    for row in random.Random(2).sample(everything, min(6, len(everything))):
        for key in (row["keys"] or ())[:1]:
            of_topic = [each for each in with_key(everything, key) if each["topic"] == row["topic"]]
            assert found(store[1], keys=(key,), topics=(row["topic"],)) == of_topic
            of_queue = [each for each in of_topic if each["queueId"] == row["queueId"]]
            assert found(store[1], keys=(key,), assign=((row["topic"], row["queueId"]),)) == of_queue
            tagged = [each for each in of_topic if each["tags"] == row["tags"]]
            if row["tags"] is not None:
                assert found(store[1], keys=(key,), topics=(row["topic"],), tags=(row["tags"],)) == tagged


def test_tags_are_what_a_scan_leaves(store: tuple[str, Path], everything: list[Row]) -> None:
    tags = sorted({row["tags"] for row in everything if row["tags"] is not None})
    for tag in tags:
        assert found(store[1], tags=(tag,)) == sorted((r for r in everything if r["tags"] == tag), key=place)
    both = tuple(tags[:2])
    assert found(store[1], tags=both) == sorted((r for r in everything if r["tags"] in both), key=place)


def test_in_the_log_alone(store: tuple[str, Path]) -> None:
    rows = read(store[1], ScanRequest(columns=ALL, scan=Scan.LOG, **AS_BROKER))
    for key in some_keys(rows, 4):
        got = read(store[1], ScanRequest(columns=ALL, scan=Scan.LOG, keys=(key,), **AS_BROKER))
        assert got == [row for row in rows if key in (row["keys"] or ())]
    for message_id in some_ids(rows, 3):
        got = read(store[1], ScanRequest(columns=ALL, scan=Scan.LOG, message_ids=(message_id,), **AS_BROKER))
        assert got == [row for row in rows if dict(row["properties"]).get("UNIQ_KEY") == message_id]


def test_permissive_is_what_a_scan_leaves(store: tuple[str, Path]) -> None:
    rows = read(store[1], ScanRequest(columns=(*ALL, "corruption"), mode=Mode.PERMISSIVE))
    for key in some_keys(rows, 6):
        got = read(store[1], ScanRequest(columns=(*ALL, "corruption"), mode=Mode.PERMISSIVE, keys=(key,)))
        assert sorted(got, key=place) == with_key(rows, key)


def queries_of_kind(name: str, kind: str) -> Iterator[dict[str, Any]]:
    return (query for query in archive.queries(name) if query["kind"] == kind)


def test_the_real_store_found_the_same(store: tuple[str, Path]) -> None:
    """A broker compares only hashes and stops at 64; mqstore finds those of its results that really have the key."""
    name, directory = store
    rows = read(directory, ScanRequest(columns=ALL, scan=Scan.LOG, **AS_BROKER))
    by_physical_offset = {row["physicalOffset"]: row for row in rows}
    served = {row["physicalOffset"] for row in read(directory, ScanRequest(columns=ALL, **AS_BROKER))}
    whole = [query for query in queries_of_kind(name, "key") if query["begin"] == 0 and query["end"] == LAST]
    assert whole
    for query in sample(whole, 12, f"queries {name}"):
        offsets = dict.fromkeys(query["physicalOffsets"])
        right = [
            at for at in offsets if at in served and is_match(by_physical_offset.get(at), query["topic"], query["key"])
        ]
        keys = found(directory, keys=(query["key"],))
        ids = found(directory, message_ids=(query["key"],))
        physical_offsets = [row["physicalOffset"] for row in [*keys, *ids]]
        got = {
            physical_offset
            for physical_offset in physical_offsets
            if by_physical_offset[physical_offset]["topic"] == query["topic"]
        }
        assert set(right) <= got, query
        if len(query["physicalOffsets"]) < query["max"] and not name.startswith("damaged"):
            assert got == set(right), query


def is_match(row: Row | None, topic: str, key: str) -> bool:
    if row is None or row["topic"] != topic:
        return False
    return key in (row["keys"] or ()) or dict(row["properties"]).get("UNIQ_KEY") == key
