"""Writing to the message store: references, rolling, deletion, merging by the node's rule, recovery."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from storage_core.files import system
from storage_core.rabbitmq.message_store import startup as recovery
from storage_core.rabbitmq.message_store.compaction import FilePair, next_pair
from storage_core.rabbitmq.message_store.locations import read_locations
from storage_core.rabbitmq.message_store.message_files import MessageFile
from storage_core.rabbitmq.message_store.message_store import MessageStore

LIMIT = 1000
RECORD = 24 + 76 + 1


def ids(*numbers: int) -> np.ndarray:
    return np.frombuffer(b"".join(number.to_bytes(16, "big") for number in numbers), "V16")


def term(number: int) -> bytes:
    return b"%076d" % number


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    made = MessageStore(str(tmp_path / "msg_store_persistent"), LIMIT, durable=True)
    made.start({}, {})
    return made


def sizes(store: MessageStore) -> dict[str, int]:
    return {entry.name: entry.size for entry in system.entries(store.directory)}


def write(store: MessageStore, *numbers: int) -> None:
    store.write(ids(*numbers), [term(number) for number in numbers])


def test_a_known_id_only_gains_a_reference(store: MessageStore) -> None:
    write(store, 1, 2, 1)
    store.sync()
    assert sizes(store) == {"0.rdq": 2 * RECORD}
    store.remove(ids(1))
    assert store.contains(ids(1, 2, 3)).tolist() == [True, True, False]
    store.remove(ids(1))
    assert store.contains(ids(1)).tolist() == [False]
    write(store, 1)
    store.sync()
    assert sizes(store) == {"0.rdq": 2 * RECORD}, "from 0 back to 1 without writing again"
    assert store.read(ids(2, 1)) == [term(2), term(1)]


def test_a_file_rolls_after_the_record_that_reaches_the_limit(store: MessageStore) -> None:
    write(store, *range(10))
    assert sizes(store) == {"0.rdq": 10 * RECORD, "1.rdq": 0}
    write(store, *range(10, 21))
    store.sync()
    assert sizes(store) == {"0.rdq": 10 * RECORD, "1.rdq": 10 * RECORD, "2.rdq": RECORD}
    store.remove(ids(*range(10)))
    assert "0.rdq" not in sizes(store)
    store.remove(ids(20))
    assert "2.rdq" in sizes(store), "the current file stays"


@pytest.mark.parametrize(
    ("files", "current", "expected"),
    [
        ({0: (400, 1000), 1: (400, 1000)}, 1, None),
        ({0: (400, 1000), 1: (500, 1000), 2: (10, 10)}, 2, FilePair(0, 1)),
        ({0: (400, 1000), 1: (700, 1000), 2: (0, 10)}, 2, None),
        ({0: (600, 1000), 1: (300, 1000), 2: (100, 900), 3: (0, 0)}, 3, FilePair(0, 1)),
        ({0: (900, 1000), 1: (300, 1000), 2: (100, 900), 3: (0, 0)}, 3, FilePair(1, 2)),
        ({0: (900, 1000), 1: (700, 1000), 2: (100, 900), 3: (0, 0)}, 3, None),
        ({0: (200, 1000), 1: (100, 1500)}, 1, None),
    ],
)
def test_which_files_are_merged(files: dict[int, tuple[int, int]], current: int, expected: FilePair | None) -> None:
    held = {number: MessageFile(valid, size) for number, (valid, size) in files.items()}
    assert next_pair(held, current, LIMIT) == expected


@pytest.mark.parametrize("seed", range(8))
def test_merging_keeps_every_message_and_the_rule(seed: int, store: MessageStore, tmp_path: Path) -> None:
    chance = random.Random(seed)
    references: dict[int, int] = {}
    merged, deepest = 0, 0
    for number in range(120):
        write(store, number)
        references[number] = 1
        if chance.random() < 0.2:
            again = chance.choice(list(references))
            write(store, again)
            references[again] += 1
        if chance.random() < 0.75:
            gone = chance.sample(list(references), min(len(references), chance.randint(1, 2)))
            before = len(store.files)
            store.remove(ids(*gone))
            merged += len(store.files) < before
            for key in gone:
                references[key] -= 1
                if not references[key]:
                    del references[key]
        deepest = max(deepest, len(store.files))
        assert next_pair(store.files, store.current, LIMIT) is None
        keys = list(references)
        if keys:
            assert store.read(ids(*keys)) == [term(key) for key in keys]
    assert merged > 1
    assert deepest >= 2
    store.sync()
    for number, file in store.files.items():
        assert file.size == sizes(store)[f"{number}.rdq"]
        live = [place.size for place in store.locations.values() if place.file == number and place.references]
        assert file.valid_size == sum(live)
    check_restart(store, references, tmp_path, clean=bool(seed % 2))


def check_restart(store: MessageStore, references: dict[int, int], root: Path, clean: bool) -> None:
    """Checks that a start, clean or dirty, finds the same messages and reference counts."""
    store.close()
    client = b"c" * 16
    if clean:
        recovery.write_clean_stop(store, [client])
    again = MessageStore(store.directory, LIMIT, durable=True)
    locations = read_locations(str(root), [client])
    assert locations.clean == clean
    if clean:
        recovery.start_clean(again, locations)
    else:
        recovery.start_dirty(again, locations, ids(*[key for key, count in references.items() for _ in range(count)]))
    held = {int.from_bytes(key, "big"): place.references for key, place in again.locations.items() if place.references}
    assert held == references
    assert again.read(ids(*references)) == [term(key) for key in references]
    for key, count in references.items():
        for _ in range(count):
            again.remove(ids(key))
    assert sum(file.valid_size for file in again.files.values()) == 0
    again.close()


def test_what_a_crash_leaves_after_the_last_record_is_cut(store: MessageStore, tmp_path: Path) -> None:
    write(store, 1, 2, 3)
    store.close()
    path = Path(store.path(0))
    path.write_bytes(path.read_bytes() + b"\0\0\0\0\0\0\0\x64torn")
    again = MessageStore(store.directory, LIMIT, durable=True)
    recovery.start_dirty(again, read_locations(str(tmp_path), []), ids(1, 2, 3, 9))
    assert path.stat().st_size == 3 * RECORD
    assert again.contains(ids(1, 3, 9)).tolist() == [True, True, False]
    again.close()


def test_an_interrupted_merge_is_finished(store: MessageStore, tmp_path: Path) -> None:
    """The left file was cut and extended with zeros, and half of the missing content had been copied back."""
    write(store, 1, 2, 3)
    store.close()
    path = Path(store.path(0))
    data = path.read_bytes()
    path.with_suffix(".rdt").write_bytes(data[RECORD:])
    path.write_bytes(data[:RECORD] + data[RECORD : RECORD + 50] + bytes(2 * RECORD - 50))
    recovery.finish_compactions(store.directory)
    assert not path.with_suffix(".rdt").exists()
    again = MessageStore(store.directory, LIMIT, durable=True)
    recovery.start_dirty(again, read_locations(str(tmp_path), []), ids(1, 2, 3))
    assert again.read(ids(1, 2, 3)) == [term(1), term(2), term(3)]
    again.close()
