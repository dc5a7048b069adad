"""Queues in Python: what is published is delivered, across restarts and threads, with one writer per store."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError, OptionError, StoreClosedError, StoreLockedError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import journal as journal_format
from storage_core.formats.rabbitmq.classic import segment as segment_format
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.queue import live_vhost, opening
from storage_core.rabbitmq.queue.queue import Queue

ROOT = Path(__file__).parents[2]
LARGE = b"L" * 5000


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def bodies(queue: Queue) -> list[bytes]:
    return [delivery.body for delivery in queue]


def test_publish_fetch_ack_requeue(root: str) -> None:
    with Queue(root, "orders") as queue:
        assert queue.publish("text", content_type="text/plain", headers={"a": "b"}, correlation_id="7") == 0
        assert queue.publish_many([b"", LARGE, b"x"], exchange="amq.topic", routing_keys=["k", "cc"]).tolist() == [
            1,
            2,
            3,
        ]
        assert queue.publish_many([]).tolist() == []
        assert (len(queue), queue.unacknowledged) == (4, 0)
        first = queue.fetch()
        assert first is not None
        assert (first.sequence_id, first.body, first.redelivered) == (0, b"text", False)
        assert first.properties == {
            "content_type": b"text/plain",
            "headers": [(b"a", "S", b"b")],
            "delivery_mode": 2,
            "correlation_id": b"7",
        }
        assert (first.message.exchange, first.message.routing_keys) == (b"", (b"orders",))
        rest = queue.fetch_many(10)
        assert rest.bodies() == [b"", LARGE, b"x"]
        assert [delivery.body for delivery in rest] == rest.bodies()
        assert rest[1].message.routing_keys == (b"k", b"cc")
        assert rest[1:].sequence_ids.tolist() == [2, 3]
        assert queue.ack(first) == 1
        assert queue.ack(first) == 0, "an unknown tag is no error"
        assert queue.requeue([3, 1, 1]) == 2
        again = queue.fetch_many(10)
        assert again.bodies() == [b"", b"x"]
        assert again.redelivered.all()
        assert queue.fetch() is None
        assert queue.ack(again) == 2
        assert (len(queue), queue.unacknowledged) == (0, 1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_persistent_messages_and_drops_the_others(root: str, clean: bool) -> None:
    queue = Queue(root, "orders")
    for number in range(300):
        queue.publish_many([b"%d" % number, b"%d" % number + LARGE], persistent=number % 3 > 0)
    queue.set_target_ram_count(0)
    taken = queue.fetch_many(90)
    queue.ack(taken.sequence_ids[::2])
    wanted = [body for n in range(300) if n % 3 for body in (b"%d" % n, b"%d" % n + LARGE)]
    acked = set(taken[::2].bodies())
    wanted = [body for body in wanted if body not in acked]
    delivered = {body for body in wanted if body in set(taken.bodies())}
    if clean:
        queue.close()
    else:
        queue.sync()
        queue._vhost.abandon(RuntimeError("killed"))
        queue.close()
    with Queue(root, "orders") as queue:
        found = list(queue)
        assert [delivery.body for delivery in found] == wanted
        assert {delivery.body for delivery in found if delivery.redelivered} == (delivered if clean else set(wanted))
        queue.ack(delivery.sequence_id for delivery in found)
    with Queue(root, "orders") as queue:
        assert len(queue) == 0
        queue.publish(b"next")
        assert bodies(queue) == [b"next"]


def test_what_the_door_leaves_is_what_reading_serves(root: str) -> None:
    with Queue(root, "orders") as queue, Queue(root, "other") as other:
        queue.publish_many([b"a", LARGE])
        other.publish(b"b", message_id="m")
    with open_store(root) as store:
        assert [(info.topic, info.start, info.stop) for info in store.queues()] == [("orders", 0, 2), ("other", 0, 1)]
        rows = [row for batch in store.read("orders", 0, 0, 2) for row in batch.to_pylist()]
        assert [(row["body"], row["redelivered"]) for row in rows] == [(b"a", False), (LARGE, False)]
        with store.queue("other") as again:
            assert bodies(again) == [b"b"]


def test_two_users_of_one_process_share_the_queue(root: str) -> None:
    first, second = Queue(root, "q"), Queue(root, "q")
    first.publish(b"1")
    assert bodies(second) == [b"1"]
    first.close()
    assert second.unacknowledged == 1
    second.close()
    for call in (lambda: first.publish(b"2"), second.fetch, lambda: len(second), second.sync):
        with pytest.raises(StoreClosedError, match=r"queue q was closed; open it again"):
            call()


def test_another_process_is_kept_out(root: str) -> None:
    code = (
        "import sys; from storage_core.rabbitmq.queue.queue import Queue\n"
        "from storage_core.errors import StoreLockedError\n"
        "try: Queue(sys.argv[1], 'q', lock_timeout_s=0.1)\n"
        "except StoreLockedError as error: print(error)\n"
    )
    with Queue(root, "q") as queue:
        queue.publish(b"1")
        done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True, cwd=ROOT)
    who = "another writer of mqstore; try again when it is done"
    assert done.stdout == f"StoreLockedError: {root}/.mqstore/lock is locked by {who}\n"


def test_many_threads_lose_and_repeat_nothing(root: str) -> None:
    found: list[list[bytes]] = [[] for _ in range(4)]
    done = threading.Event()
    with Queue(root, "q", Settings(target_ram_count=50)) as queue:

        def publish(worker: int) -> None:
            for number in range(100):
                queue.publish_many([b"%d-%d-%d" % (worker, number, place) for place in range(5)])

        def consume(worker: int) -> None:
            while True:
                ended = done.is_set()
                taken = queue.fetch_many(7)
                found[worker] += taken.bodies()
                queue.ack(taken)
                if ended and not len(taken):
                    return

        publishers = [threading.Thread(target=publish, args=(worker,)) for worker in range(4)]
        consumers = [threading.Thread(target=consume, args=(worker,)) for worker in range(4)]
        for thread in publishers + consumers:
            thread.start()
        for thread in publishers:
            thread.join()
        done.set()
        for thread in consumers:
            thread.join()
        assert (len(queue), queue.unacknowledged) == (0, 0)
    wanted = {b"%d-%d-%d" % (w, n, p) for w in range(4) for n in range(100) for p in range(5)}
    assert sorted(body for part in found for body in part) == sorted(wanted)


def test_expired_messages_are_not_delivered(root: str) -> None:
    now_us = time.time_ns() // 1000
    with Queue(root, "q") as queue:
        queue.publish_many([b"old", b"older"], expires_at_us=now_us - 1)
        queue.publish(b"new", expires_at_us=now_us + 3_600_000_000)
        queue.publish(b"for ever")
        assert queue.fetch_many(9).bodies() == [b"new", b"for ever"]


def test_lazy_priority_and_transient_queues(root: str) -> None:
    with Queue(root, "lazy") as queue:
        queue.set_lazy(True)
        queue.publish_many([b"%d" % number for number in range(5000)])
        assert queue._queue.paging.state.ram_msg_count == 0
        assert bodies(queue) == [b"%d" % number for number in range(5000)]
    with Queue(root, "prio", priority=3) as queue:
        queue.publish(b"3")
    assert (Path(root) / "queues" / paths.queue_directory(b"/", b"prio", 3)).is_dir()
    with Queue(root, "gone", durable=False) as queue:
        queue.publish_many([b"1"] * 10)
        queue.set_target_ram_count(0)
    assert not (Path(root) / "queues" / paths.queue_directory(b"/", b"gone")).exists()
    with Queue(root, "gone", durable=False) as queue:
        assert len(queue) == 0


def test_purge(root: str) -> None:
    with Queue(root, "q") as queue:
        queue.publish_many([b"1", LARGE, b"3"])
        taken = queue.fetch()
        assert queue.purge() == 2
        assert (len(queue), queue.unacknowledged) == (0, 1)
        queue.ack(taken or [])
        queue.publish_many([b"4"] * 3)
        assert queue.purge() == 3
        assert not (Path(root) / "queues" / paths.queue_directory(b"/", b"q")).exists()
        assert queue.publish(b"5") == 6, "sequence ids go on"
    with Queue(root, "q") as queue:
        assert bodies(queue) == [b"5"]


def test_what_the_clock_does(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_vhost, "TICK_INTERVAL_S", 3600.0)
    folder = Path(root) / "queues" / paths.queue_directory(b"/", b"q")
    with Queue(root, "q") as queue:
        queue.publish_many([b"1"] * 10)
        vhost, now = queue._vhost, time.monotonic()
        assert (folder / "journal.jif").stat().st_size == 0
        vhost.tick(now + 0.2)
        assert (folder / "journal.jif").stat().st_size > 0, "the journal is synced after 200 ms"
        vhost.tick(now + 1.5)
        assert (folder / "journal.jif").stat().st_size == 0, "the queue hibernates: its journal is flushed"
        assert (folder / "0.idx").stat().st_size > 0
        vhost.monitor.limit = 1
        queue.publish_many([b"2"] * 200)
        vhost.tick(now + 6)
        assert vhost.monitor.count == 1, "the queue reports every five seconds"
        vhost.tick(now + 12)
        assert queue._queue.paging.state.target_ram_count is not None, "and obeys: memory is far over the limit"


def test_settings_have_a_door(root: str) -> None:
    with open_or_new(root, queue_index_segment_entry_count=16, target_ram_count=3) as queue:
        queue.publish_many([b"%d" % number for number in range(50)])
        queue.sync()
        queue._queue.index.flush()
        assert (Path(root) / "queues" / queue._queue.directory / "3.idx").exists()
        assert queue._queue.paging.state.target_ram_count == 3
    assert paths.parse_config((Path(root) / ".config").read_bytes()) == 16
    with Queue(root, "q") as queue:
        assert queue._vhost.settings.queue_index_segment_entry_count == 16, "a store keeps its own"
        assert len(bodies(queue)) == 50


def open_or_new(root: str, **options: object) -> Queue:
    return Queue(root, "q", Settings().with_options(options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"msg_store_io_batch_sise": 1}, "msg_store_io_batch_size"),
        ({"queue_index_segment_entry_count": 16385}, "at most 16384"),
        ({"target_ram_count": "many"}, "a number is wanted"),
        ({"target_ram_count": -1}, "at least 0"),
        ({"msg_store_credit_disc_bound": "4000"}, "two numbers"),
    ],
)
def test_wrong_settings_are_one_line(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Settings().with_options(options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_of_another_vhost_and_long_names_are_refused(root: str) -> None:
    with Queue(root, "q", vhost="mine") as queue:
        with pytest.raises(OptionError, match="at most 255 bytes"):
            queue.publish(b"1", routing_keys=["k" * 256])
        with pytest.raises(OptionError, match="properties"):
            queue.publish(b"1", no_such_property="x")
    with pytest.raises(OptionError, match="belongs to the vhost 'mine'"):
        Queue(root, "q", vhost="other")


def test_a_full_disk_leaves_the_store_to_the_next_opening(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_vhost, "TICK_INTERVAL_S", 3600.0)
    queue = Queue(root, "q")
    queue.publish_many([b"kept"])
    queue.sync()
    queue.publish(b"lost")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("storage_core.files.system.pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            queue.sync()
    with pytest.raises(StoreClosedError, match="open it again"):
        queue.publish(b"more")
    queue.close()
    with Queue(root, "q") as queue:
        assert bodies(queue) == [b"kept"]


def test_the_lock_is_free_after_a_failed_opening(root: str) -> None:
    with Queue(root, "q") as queue:
        queue.publish(b"1")
    folder = Path(root) / "queues" / paths.queue_directory(b"/", b"two")
    folder.mkdir()
    (folder / "0.qi").write_bytes(b"RCQI")
    with pytest.raises(Exception, match="version 2"):
        Queue(root, "q")
    (folder / "0.qi").unlink()
    with Queue(root, "q", lock_timeout_s=0.1) as queue:
        assert bodies(queue) == [b"1"]


def test_locked_is_reported(root: str) -> None:
    vhost = opening.open_vhost(root, Settings(), ticking=False)
    with pytest.raises(StoreLockedError, match="locked"):
        opening.open_vhost(root, Settings(), lock_timeout_s=0, ticking=False)
    vhost.close()


def test_a_damaged_segment_is_reported_and_spoils_nothing(root: str) -> None:
    with Queue(root, "q") as queue, Queue(root, "other") as other:
        queue.publish_many([b"1"] * 5)
        queue._queue.index.flush()
        other.publish(b"2")
        segment = Path(root) / "queues" / queue._queue.directory / "0.idx"
    data = segment.read_bytes()
    segment.write_bytes(data[:40] + b"\x01" + data[40:])
    with pytest.raises(CorruptionError, match=r"CorruptionError: .*0\.idx at \d+: ") as caught:
        Queue(root, "q")
    assert "\n" not in str(caught.value)
    with Queue(root, "other") as other:
        assert bodies(other) == [b"2"]
    segment.write_bytes(data)
    with Queue(root, "q") as queue:
        found = list(queue)
        assert [delivery.body for delivery in found] == [b"1"] * 5
        assert not any(delivery.redelivered for delivery in found), "the terms of the last stop still hold"


def test_a_damaged_index_is_not_written_to(root: str) -> None:
    """Damage that a read lists makes the queue refuse a writer, who would build on it."""
    small = Settings(queue_index_segment_entry_count=16, queue_index_max_journal_entries=20)
    with Queue(root, "q", small) as queue:
        queue.publish_many([b"x"] * 12)
    folder = Path(root) / "queues" / paths.queue_directory(b"/", b"q")
    journal, segment = folder / "journal.jif", folder / "0.idx"
    whole = segment.read_bytes()
    first = segment_format.walk(whole)
    segment.write_bytes(whole + whole[: int(first.marks[0])])
    message = f"0.idx at {len(whole)}: a second publish of relative sequence 11; .* restore"
    with pytest.raises(CorruptionError, match=message):
        Queue(root, "q").close()
    segment.write_bytes(whole)
    journal.write_bytes(journal_format.encode_marks(journal_format.DELIVER, np.array([3, 3])))
    with pytest.raises(CorruptionError, match=r"journal\.jif at 8: the deliver of sequence id 3 does not follow"):
        Queue(root, "q").close()
    journal.write_bytes(b"")
    with Queue(root, "q") as queue:
        assert len(queue) == 12
