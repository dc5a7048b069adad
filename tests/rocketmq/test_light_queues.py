"""Light queues of a killed broker's store: a broker start lists there what the dispatcher had not listed yet."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.formats.rocketmq.message import decode
from storage_core.rocketmq.recovery.light_queues import queues_named_by
from tests.reference.rocketmq_model import Message, ModelStore, encode, properties_bytes
from tests.reference.served import AS_BROKER, Row, in_partitions, place, read
from tests.rocketmq.growing_store import GrowingStore
from tests.rocketmq.light_store import FIRST_MS, QUEUE_FILE_SIZE, make_light_store

LIGHT = ("%LMQ%a", "%LMQ%b")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_light_store(tmp_path / "store")


def lose(directory: Path, kept: int) -> None:
    """Kills the broker when only the first `kept` entries of each light queue have reached the disk."""
    (directory / "abort").touch()
    (directory / "checkpoint").unlink(missing_ok=True)
    for name in LIGHT:
        folder = directory / "consumequeue" / name
        if not kept:
            shutil.rmtree(folder)
            continue
        for file in (folder / "0").iterdir():
            left = max(0, min(kept * 20 - int(file.name), QUEUE_FILE_SIZE))
            file.write_bytes(file.read_bytes()[:left].ljust(QUEUE_FILE_SIZE, b"\0"))


def light_rows(directory: Path, partitions: int = 1, **request: object) -> list[Row]:
    rows = read(directory, in_partitions(partitions, **request, **AS_BROKER))
    return sorted((row for row in rows if row["topic"] in LIGHT), key=place)


@pytest.mark.parametrize("kept", [0, 1, 7, 16])
def test_a_start_lists_what_was_not_listed(directory: Path, kept: int) -> None:
    before = light_rows(directory)
    files = {path: path.read_bytes() for path in sorted((directory / "consumequeue").rglob("0*")) if path.is_file()}
    assert len(before) == 17 + 24
    lose(directory, kept)
    for partitions in (1, 5):
        assert light_rows(directory, partitions) == before
    for key in ("k0", "k3"):
        assert light_rows(directory, keys=(key,)) == [row for row in before if row["key"] == key]
    late = FIRST_MS + 31
    assert light_rows(directory, start_ms=late) == [row for row in before if row["storeTimestamp"] >= late]
    with open_store(str(directory)) as store:
        ends = {(queue.topic, queue.queue_id): (queue.start, queue.stop) for queue in store.queues()}
        assert ends == {("T", 1): (0, 60), (LIGHT[0], 0): (0, 17), (LIGHT[1], 0): (0, 24)}
        store.append(pa.table({"topic": ["T"], "queueId": pa.array([1], pa.int32()), "body": [b"new"]}))
    assert light_rows(directory) == before
    for path, data in files.items():
        if path.parts[-3] in LIGHT:
            assert path.read_bytes() == data, "what a broker's start would write"


def test_a_clean_stop_means_that_all_is_listed(directory: Path) -> None:
    """A broker start dispatches nothing before the last entry of the queue that reaches furthest."""
    shutil.rmtree(directory / "consumequeue" / LIGHT[0])
    assert {row["topic"] for row in light_rows(directory)} == {LIGHT[1]}


def test_new_light_queues_are_followed(directory: Path, tmp_path: Path) -> None:
    """A stream sees a light queue that a record names once the broker lists the record there."""
    rows = light_rows(directory)
    live = GrowingStore(directory, tmp_path / "live")
    listed = dict.fromkeys(LIGHT, 0)
    with open_store(str(live.root)).follow() as tail:
        for number, record in enumerate(live.records):
            live.write(record["physicalOffset"] + record["size"])
            live.list(1)
            for name in LIGHT if number % 20 == 19 else ():
                before = [row for row in rows if row["physicalOffset"] <= record["physicalOffset"]]
                listed[name] = sum(row["topic"] == name for row in before)
                live.list_in((name, 0), listed[name])
            stops = {key: stop for key, (_, stop) in tail.look().positions.items()}
            assert stops == {("T", 1): number + 1} | {(name, 0): count for name, count in listed.items() if count}
    assert sum(listed.values()) == len(rows)


def found(directory: Path) -> list[tuple[str, str | None, str, str]]:
    with open_store(str(directory)) as store:
        return [(each.kind, each.queue, each.reason, each.effect) for each in store.verify()]


def queue_bytes(directory: Path) -> dict[str, bytes]:
    files = sorted((directory / "consumequeue").rglob("0*"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.parametrize(
    ("kept", "count_text"),
    [(0, "queue offsets 0 to 16: 17 messages are"), (7, "queue offsets 7 to 16: 10 messages are")],
)
def test_what_a_light_queue_lacks_is_found_and_rebuilt(
    directory: Path, tmp_path: Path, kept: int, count_text: str
) -> None:
    assert found(directory) == []
    before = queue_bytes(directory)
    lose(directory, kept)
    shutil.copytree(directory, tmp_path / "killed")
    (directory / "abort").unlink()
    (directory / "checkpoint").write_bytes(bytes(4096))
    kinds = "unlisted messages", f"{LIGHT[0]}/0", f"{count_text} in no queue file"
    assert (*kinds, "never delivers them") in found(directory)
    assert (*kinds, "lists them again at its start") in found(tmp_path / "killed")
    for lacking in (directory, tmp_path / "killed"):
        with open_store(str(lacking), indexSlots=5, indexEntries=40) as store:
            done = list(store.repair())
        assert [line for line in done if "LMQ" in line] == [
            f"consumequeue/{name}/0: rebuilt from the log" for name in LIGHT
        ]
        assert found(lacking) == []
        assert queue_bytes(lacking) == before


def test_a_dispatcher_may_have_listed_the_last_message_in_its_own_queue_alone(directory: Path) -> None:
    """Message 57 is in both light queues, and is the last one that a killed broker listed."""
    (directory / "abort").touch()
    for name, count in (("T/1", 58), ("%LMQ%a/0", 16), ("%LMQ%b/0", 23)):
        for file in (directory / "consumequeue" / name).iterdir():
            left = max(0, min(count * 20 - int(file.name), QUEUE_FILE_SIZE))
            file.write_bytes(file.read_bytes()[:left].ljust(QUEUE_FILE_SIZE, b"\0"))
    assert [each for each in found(directory) if each[0] == "unlisted messages"] == []
    with (directory / "consumequeue" / "%LMQ%b" / "0" / f"{QUEUE_FILE_SIZE:020}").open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))
    reasons = {(each[1], each[2]) for each in found(directory) if each[0] == "unlisted messages"}
    assert reasons == {("%LMQ%b/0", "queue offset 22: 1 message is in no queue file")}


def test_numbers_that_4_9_gives_out_again_are_no_damage(tmp_path: Path) -> None:
    """After a restart the numbers in a light queue begin at 0: the first is listed, but none up to the old end."""
    directory, store, listed = tmp_path / "store", ModelStore(8192, QUEUE_FILE_SIZE), list[bytes]()
    for number, offset in enumerate((0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6)):
        pairs = [("INNER_MULTI_DISPATCH", LIGHT[0]), ("INNER_MULTI_QUEUE_OFFSET", str(offset))]
        store_ms = FIRST_MS + number
        at, size = store.put(Message("T", 1, b"x", properties_bytes(pairs, True), store_ms, store_ms))
        if offset == 0 or offset >= len(listed):
            listed.append(struct.pack(">qiq", at, size, 0))
    assert len(listed) == 7
    store.save(directory)
    queue = directory / "consumequeue" / LIGHT[0] / "0" / f"{0:020}"
    queue.parent.mkdir(parents=True)
    queue.write_bytes(b"".join(listed).ljust(QUEUE_FILE_SIZE, b"\0"))
    assert found(directory) == []
    queue.write_bytes(b"".join(listed[:-1]).ljust(QUEUE_FILE_SIZE, b"\0"))
    assert [each[2] for each in found(directory)] == ["queue offset 6: 1 message is in no queue file"]


@pytest.mark.parametrize(
    ("topic", "names", "offsets", "by_4", "by_5"),
    [
        ("T", "%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 0, 3), ("%LMQ%b", 0, 4)], None),
        ("T", "other,%LMQ%a", "5,6", [("other", 7, 5), ("%LMQ%a", 0, 6)], None),
        ("T", "%LMQ%a,,", "3,", [("%LMQ%a", 0, 3)], None),
        ("T", "%LMQ%a,%LMQ%b", "3", [], None),
        ("T", "%LMQ%a", "3,4", [], None),
        ("T", "%LMQ%a", "", [], None),
        ("T", "%LMQ%a/b", "3", [], None),
        ("T", "%LMQ%a\0b,..,.," + "x" * 256 + ",%LMQ%b", "3,4,5,6,7", [("%LMQ%b", 0, 7)], None),
        ("T", "", "3", [], None),
        ("%RETRY%g", "%LMQ%a", "3", [("%LMQ%a", 0, 3)], []),
        ("SCHEDULE_TOPIC_XXXX", "%LMQ%a", "3", [("%LMQ%a", 0, 3)], []),
    ],
)
def test_what_a_record_names(
    topic: str, names: str, offsets: str, by_4: list[tuple[str, int, int]], by_5: list[tuple[str, int, int]] | None
) -> None:
    given = (("INNER_MULTI_DISPATCH", names), ("INNER_MULTI_QUEUE_OFFSET", offsets))
    pairs = [pair for pair in given if pair[1]]
    records = [
        encode(Message(each, 7, b"x", properties_bytes(own, True), FIRST_MS, FIRST_MS), 0, 0)
        for each, own in (("T", []), (topic, pairs), ("T", [("a", "b")]))
    ]
    sizes = np.array([len(record) for record in records])
    messages = decode(np.frombuffer(b"".join(records), np.uint8), np.cumsum(sizes) - sizes, sizes)
    for of_5x, expected in ((False, by_4), (True, by_4 if by_5 is None else by_5)):
        found = queues_named_by(messages, np.ones(3, bool), of_5x)
        rows = [] if found is None else zip(found.topics.to_pylist(), found.queue_ids, found.queue_offsets, strict=True)
        assert list(rows) == expected
        assert found is None or set(found.rows.tolist()) == {1}
        assert queues_named_by(messages, np.array([True, False, True]), of_5x) is None


@pytest.mark.parametrize("queues", ["kept", "lost"])
def test_a_record_of_a_batch_queue_is_in_no_light_queue(directory: Path, queues: str) -> None:
    """A broker's batch queue has no multi-dispatch. The light queues get nothing, or keep what they list."""
    config = directory / "config"
    config.mkdir()
    attributes = {"T": {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": attributes}))
    (directory / "abort").touch()
    shutil.rmtree(directory / "consumequeue" / "T")
    if queues == "lost":
        shutil.rmtree(directory / "consumequeue")
    for rules, count in (("5.x", 0), ("4.9", 17 + 24)):
        rows = read(directory, in_partitions(1, **AS_BROKER), recovery=rules)
        assert sum(row["topic"] in LIGHT for row in rows) == (count if queues == "lost" else 17 + 24)
