"""Hexdumps of the files of RabbitMQ 3.10.8 nodes."""

from __future__ import annotations

from storage_core.formats.rabbitmq.classic import journal, message_file, queue_v2, segment
from storage_core.formats.rabbitmq.erlang import dets, disk_log
from tools.dumps.dump import Dump, hexadecimal, microseconds, opened, quoted
from tools.dumps.terms import BASIC_MESSAGE, named, term, text, whole

VHOST = "vhosts/628WB79CIFDYO9LJI6DKMI09L/"
CLEAN = f"rabbitmq/snapshots/s1_mixed_clean_idle.tar.gz!{VHOST}"
KILLED = f"rabbitmq/snapshots/s3_mixed_kill9.tar.gz!{VHOST}"
ONE_QUEUE = f"rabbitmq/snapshots/s7_gc_clean.tar.gz!{VHOST}"
VERSION_2 = f"rabbitmq/snapshots/s11_cqv2_clean.tar.gz!{VHOST}queues/7IQH9I55H2FAOE0NCB9QS7ALG/"
KINDS = ("persistent publish", "transient publish", "deliver", "ack")

OBJECT = named(
    "object", "queue directory", named("terms", named("pair", "key", named("value", named("pair", "segment"))))
)
ROW = named("row", "tag", "file", "valid_total_size", "left", "right", "file_size", "locked", "readers")
QUEUE = named(
    "queue", "tag", named("name", "tag", "vhost", "kind", "name"), "durable", "auto_delete", "exclusive_owner",
    named("arguments", named("argument", "name", "type", "value")), "pid", "slave_pids", "sync_slave_pids",
    "recoverable_slaves", "policy", "operator_policy", "gm_pids", "decorators", "state", "policy_version",
    "slave_pids_pending_shutdown", "vhost", named("options", "option"), "type", "type_state",
)  # fmt: skip
LOCATIONS = {0: "memory", 1: "shared store", 2: "own store"}


def journal_file() -> Dump:
    """The journal of a killed node's queue: publish and deliver of messages in the shared store."""
    dump = opened(f"{KILLED}queues/GSCRODVW3DTM0YF6N3FV9W8O/journal.jif")
    for _ in range(2):
        dump.struct(journal.PUBLISH, head=_journal_head, expiry=microseconds)
        dump.struct(journal.MARK, head=_journal_head)
    return dump


def segment_file() -> Dump:
    """A whole segment: three messages of the shared store in one flush, so in descending order."""
    dump = opened(f"{CLEAN}queues/GSCRODVW3DTM0YF6N3FV9W8O/0.idx")
    while dump.position < len(dump.content):
        if dump.content[dump.position] & 0x80:
            dump.struct(segment.PUBLISH, head=_segment_head, expiry=microseconds)
        else:
            dump.struct(segment.MARK, head=_segment_head)
    return dump


def embedded_message() -> Dump:
    """A publish with an expiry and its message embedded, and the deliver that follows."""
    dump = opened(f"{CLEAN}queues/14L82OQ6YF42O0PSPML2CIN4F/0.idx")
    dump.struct(segment.PUBLISH, head=_segment_head, expiry=microseconds)
    term(dump, BASIC_MESSAGE)
    dump.struct(segment.MARK, head=_segment_head)
    return dump


def message_file_record() -> Dump:
    """The first record of a message file."""
    dump = opened(f"{ONE_QUEUE}msg_store_persistent/0.rdq")
    size = dump.struct(message_file.HEAD)["size"] - 16
    dump.take(size, "term", _message)
    dump.number(1, "marker", lambda number: f"{number} (written whole)")
    return dump


def version_2_index() -> Dump:
    """Header of a `.qi`, and the first entries that are left in it."""
    dump = opened(f"{VERSION_2}0.qi")
    dump.struct(queue_v2.HEADER)
    size = queue_v2.ENTRY.size
    live = [at for at in range(dump.position, len(dump.content), size) if dump.content[at]]
    own = next(at for at in live if dump.content[at + 3] == 2)
    shared = next(at for at in live if dump.content[at + 3] == 1)
    for at in sorted((own, shared)):
        dump.skip_to(at, f"entries before sequence id {(at - queue_v2.HEADER.size) // size}")
        dump.struct(queue_v2.ENTRY, expiry=microseconds, location=lambda kind: f"{kind} ({LOCATIONS[kind]})")
    return dump


def version_2_store() -> Dump:
    """Header of a `.qs` and its first message."""
    dump = opened(f"{VERSION_2}0.qs")
    dump.struct(queue_v2.HEADER)
    size = dump.struct(queue_v2.STORED, checksum=lambda number: f"{number:#06x}")["size"]
    dump.take(size, "term", _message)
    return dump


def recovery_dets() -> Dump:
    """`recovery.dets` of a vhost with one queue: the header, and the one collection with its object."""
    dump = opened(f"{ONE_QUEUE}recovery.dets")
    dump.struct(dets.HEADER, cookie=hexadecimal, free_list=hexadecimal)
    dump.skip_to(dump.content.find(b"\x12\x34\x56\x78") - 4, "pointers to the hash slots, and the slots")
    dump.struct(dets.COLLECTION, status=hexadecimal)
    dump.number(4, "object_size", lambda number: f"{number} (with these 4 bytes)")
    term(dump, OBJECT)
    dump.skip_to(len(dump.content) - 4, "padding, the free lists")
    dump.number(4, "file_size", lambda number: f"{number} (the file's length - buddy_base)")
    return dump


def ets_dump() -> Dump:
    """`file_summary.ets`: the description of the table, its first row, its end."""
    dump = opened(f"{ONE_QUEUE}msg_store_persistent/file_summary.ets")
    dump.struct(disk_log.HEAD, magic=hexadecimal, state=hexadecimal)
    size = dump.struct(disk_log.ITEM)["size"]
    dump.take(size, "term", lambda raw: f"tuple that describes the table, {len(raw)} bytes")
    dump.struct(disk_log.ITEM)
    term(dump, ROW)
    last = dump.content.rindex(bytes.fromhex("62574c41")) - 4
    dump.skip_to(last, "the other rows, an item each")
    size = dump.struct(disk_log.ITEM)["size"]
    dump.take(size, "term", text)
    return dump


def queue_table() -> Dump:
    """A node's table of durable queues: the head of the `.DCD`, its header item and the first queue."""
    dump = opened("rabbitmq/node/killed/rabbit_durable_queue.DCD")
    dump.struct(disk_log.HEAD, magic=hexadecimal, state=hexadecimal)
    size = dump.struct(disk_log.ITEM)["size"]
    dump.take(size, "term", text)
    dump.struct(disk_log.ITEM)
    term(dump, QUEUE)
    return dump


def transaction_log() -> Dump:
    """One change of `rabbit_durable_queue` in a node's `LATEST.LOG`: the second queue that was declared."""
    dump = opened("rabbitmq/node/killed/LATEST.LOG")
    dump.struct(disk_log.HEAD, magic=hexadecimal, state=hexadecimal)
    first = dump.content.index(b"rabbit_durable_queue")
    declared = dump.content.index(b"rabbit_durable_queue", first + 1)
    item = dump.content.rindex(bytes.fromhex("62574c41"), 0, declared) - 4
    dump.skip_to(item, "earlier items")
    dump.struct(disk_log.ITEM)
    dump.take(3, "term", lambda raw: f"version, tuple of {raw[2]}")
    for name in ("tag", "node", "decision", "RAM changes", "disk changes", "other", "other", "other"):
        whole(dump, name)
    return dump


def queue_name() -> Dump:
    """`.queue_name` of one priority of a priority queue."""
    return _text_file(f"{CLEAN}queues/GSCRODVW3DTM0YF6N3FV9W8O/.queue_name")


def config() -> Dump:
    """`.config` of a vhost."""
    return _text_file(f"{CLEAN}.config")


def clean_dot() -> Dump:
    """`clean.dot` of a store with one queue."""
    return _text_file(f"{ONE_QUEUE}msg_store_persistent/clean.dot")


def _text_file(path: str) -> Dump:
    dump = opened(path)
    for line in dump.content.splitlines(keepends=True):
        dump.take(len(line), "line", quoted)
    return dump


def _message(raw: bytes) -> str:
    text(raw)
    return f"basic_message of {len(raw):,} bytes, as in 6.3"


def _journal_head(number: int) -> str:
    return f"{KINDS[number >> 62]}, sequence id {number & (1 << 62) - 1}"


def _segment_head(number: int) -> str:
    kind = ("publish, persistent" if number & 0x4000 else "publish, transient") if number & 0x8000 else "deliver or ack"
    return f"{kind}, relative sequence {number & 0x3FFF}"


DUMPS = {
    "rabbitmq journal": journal_file,
    "rabbitmq segment": segment_file,
    "rabbitmq embedded message": embedded_message,
    "rabbitmq message file": message_file_record,
    "rabbitmq qi": version_2_index,
    "rabbitmq qs": version_2_store,
    "rabbitmq recovery.dets": recovery_dets,
    "rabbitmq ets dump": ets_dump,
    "rabbitmq queue table": queue_table,
    "rabbitmq transaction log": transaction_log,
    "rabbitmq queue name": queue_name,
    "rabbitmq config": config,
    "rabbitmq clean.dot": clean_dot,
}
