"""Hexdumps of a RocketMQ store's files. Most show one message of `broker-4.9.3` on its way through the store."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.formats.rocketmq import checkpoint, consumequeue, indexfile, message
from tools.dumps.dump import Dump, opened, quoted, zeros

BROKER = "rocketmq/broker-4.9.3.tar.gz!store/"
LOG = f"{BROKER}commitlog/00000000000000000000"
QUEUE = f"{BROKER}consumequeue/greetings/3/00000000000000000000"
INDEX = f"{BROKER}index/20261120213727293"
INDEX_SLOTS = 500
FULL_LOG = "rocketmq/mixed-4.9.3.tar.gz!store/commitlog/00000000000000000000"


def record() -> Dump:
    """The first message of a broker's log."""
    dump = opened(LOG)
    found = dump.struct(message.HEADER_V4)
    dump.take(found["body_length"], "body", quoted)
    size = dump.number(1, "topic_length")
    dump.take(size, "topic", quoted)
    stop = dump.number(2, "properties_length") + dump.position
    while dump.position < stop:
        end = dump.content.find(b"\x02", dump.position, stop)
        dump.take((stop if end < 0 else end + 1) - dump.position, "property", quoted)
    return dump


def blank_record() -> Dump:
    """The end of a full log file: the last record's end, the blank record, zeros."""
    dump = opened(FULL_LOG)
    starts, sizes = _records(dump.content)
    dump.position = dump.start = starts[-1] + sizes[-1]
    end = len(dump.content)
    room = dump.struct(message.BLANK, size=lambda size: f"{size:,} = {end:,} - {dump.start:,}")["size"]
    dump.take(room - message.BLANK.size, "unused", zeros)
    return dump


def queue_entries() -> Dump:
    """The first two entries of the queue that holds the message of `record`."""
    dump = opened(QUEUE)
    for _ in range(2):
        dump.struct(consumequeue.QUEUE_ENTRY)
    return dump


def index() -> Dump:
    """Header of an index file, the slot of the record's first key, and the chain that starts at the slot."""
    dump = opened(INDEX)
    dump.struct(indexfile.HEADER)
    first = _entry(1)
    number = int.from_bytes(dump.content[first : first + 4], "big") % INDEX_SLOTS
    dump.skip_to(indexfile.HEADER.size + indexfile.SLOT.size * number, f"slots 0 to {number - 1}")
    entry = dump.number(indexfile.SLOT.size, f"slot {number}", "entry {}".format)
    dump.skip_to(_entry(0), "the other slots")
    dump.take(indexfile.ENTRY.size, "entry 0", lambda raw: f"{len(raw)} zeros, never used")
    for number in sorted(_chain(dump.content, entry)):
        if _entry(number) > dump.position:
            dump.skip_to(_entry(number), f"entries up to {number - 1}")
        dump.struct(indexfile.ENTRY, key_hash=_slot_of(number))
    return dump


def checkpoint_file() -> Dump:
    """The checkpoint of a store with several index files."""
    dump = opened("rocketmq/mixed-4.9.3.tar.gz!store/checkpoint")
    dump.struct(checkpoint.CHECKPOINT)
    dump.take(len(dump.content) - dump.position, "unused", zeros)
    return dump


def consumer_offsets() -> Dump:
    """The beginning of `consumerOffset.json`: its integer keys are not in quotes."""
    dump = opened(f"{BROKER}config/consumerOffset.json")
    lines = dump.content.splitlines(keepends=True)
    for line in lines[:4]:
        dump.take(len(line), "line", quoted)
    dump.skip_to(len(dump.content) - len(lines[-1]) - len(lines[-2]), "more groups")
    for line in lines[-2:]:
        dump.take(len(line), "line", quoted)
    return dump


def topics() -> Dump:
    """The beginning of `topics.json`."""
    dump = opened(f"{BROKER}config/topics.json")
    for line in dump.content.splitlines(keepends=True)[:14]:
        dump.take(len(line), "line", quoted)
    return dump


def _records(content: bytes) -> tuple[list[int], list[int]]:
    starts, sizes, position = [], [], 0
    while content[position + 4 : position + 8] == b"\xda\xa3\x20\xa7":
        starts.append(position)
        sizes.append(int.from_bytes(content[position : position + 4], "big"))
        position += sizes[-1]
    return starts, sizes


def _slot_of(entry: int) -> Callable[[int], str]:
    return lambda found: f"{found} (entry {entry}; {found} mod {INDEX_SLOTS} = slot {found % INDEX_SLOTS})"


def _entry(number: int) -> int:
    return indexfile.HEADER.size + indexfile.SLOT.size * INDEX_SLOTS + indexfile.ENTRY.size * number


def _chain(content: bytes, entry: int) -> list[int]:
    found = []
    while entry:
        found.append(entry)
        stop = _entry(entry) + indexfile.ENTRY.size
        entry = int.from_bytes(content[stop - 4 : stop], "big")
    return found


DUMPS = {
    "rocketmq record": record,
    "rocketmq blank record": blank_record,
    "rocketmq queue entries": queue_entries,
    "rocketmq index file": index,
    "rocketmq checkpoint": checkpoint_file,
    "rocketmq consumerOffset.json": consumer_offsets,
    "rocketmq topics.json": topics,
}
