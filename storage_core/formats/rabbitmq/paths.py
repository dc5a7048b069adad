"""Names of directories and files in a vhost's store, and its small text files. Opens nothing.

Source: rabbitmq.md 1.1 to 1.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import md5

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import erlang_text

VHOST_FILE = ".vhost"
CONFIG_FILE = ".config"
STUB_FILE = ".queue_name"
RECOVERY_FILE = "recovery.dets"
QUEUES_FOLDER = "queues"
PERSISTENT_FOLDER = "msg_store_persistent"
TRANSIENT_FOLDER = "msg_store_transient"
JOURNAL_FILE = "journal.jif"
CLEAN_FILE = "clean.dot"
SUMMARY_FILE = "file_summary.ets"
INDEX_FILE = "msg_store_index.ets"

SEGMENT_SUFFIX, INDEX2_SUFFIX, STORE2_SUFFIX = ".idx", ".qi", ".qs"
MESSAGE_SUFFIX, COMPACTION_SUFFIX = ".rdq", ".rdt"

LEGACY_SEGMENT_ENTRY_COUNT = 16384
LARGEST_SEGMENT_ENTRY_COUNT = 10_000_000
"""The largest count tried. A node uses only the first 16384 entries of a larger segment (rabbitmq.md 1.3)."""
MAX_PRIORITY = 255

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERED = re.compile(r"(0|[1-9][0-9]{0,17})(\.[a-z]+)")


@dataclass(frozen=True)
class QueueName:
    """The contents of a queue directory's stub: vhost, queue (without a priority queue's `00 p` suffix), version."""

    vhost: bytes
    queue: bytes
    priority: int | None
    version: int


def hashed(name: bytes) -> str:
    """MD5 of `name` as one big-endian number in base 36, upper case, no leading zeros."""
    number = int.from_bytes(md5(name, usedforsecurity=False).digest(), "big")
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


def vhost_directory(vhost: bytes) -> str:
    """Directory name of a vhost."""
    return hashed(vhost)


def queue_directory(vhost: bytes, queue: bytes, priority: int | None = None) -> str:
    """Directory name of a queue; `priority` selects one of the sub-queues of a queue with `x-max-priority`."""
    suffix = b"" if priority is None else bytes((0, priority))
    return hashed(b"queue" + vhost + queue + suffix)


def number_of(name: str, suffix: str) -> int | None:
    """The number in `<n><suffix>`, decimal without padding; None for any other name."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found and found[2] == suffix else None


def suffix_of(name: str) -> str:
    """The suffix of a file name, including the dot."""
    return "." + name.rpartition(".")[2]


def parse_stub(data: bytes) -> QueueName:
    """Decodes `.queue_name`. Queue names may hold any byte, even line ends. Raises FormatError unless it is a stub."""
    found = re.fullmatch(rb"VHOST: (.*?)\nQUEUE: (.*?)\n(INDEX: v2\n)?", data, re.DOTALL)
    if found is None:
        raise FormatError(0, "no queue name stub")
    queue, priority = found[2], None
    if len(queue) >= 2 and queue[-2] == 0:
        queue, priority = queue[:-2], queue[-1]
    return QueueName(found[1], queue, priority, 2 if found[3] else 1)


def encode_stub(name: QueueName) -> bytes:
    """Bytes of `.queue_name`."""
    suffix = b"" if name.priority is None else bytes((0, name.priority))
    last = b"INDEX: v2\n" if name.version == 2 else b""
    return b"VHOST: " + name.vhost + b"\nQUEUE: " + name.queue + suffix + b"\n" + last


def parse_config(data: bytes) -> int:
    """Segment entry count of `.config`. Raises FormatError unless the file states a count from 1 to 10,000,000."""
    for term in erlang_text.parse(data.decode("utf-8", "replace")):
        if isinstance(term, tuple) and len(term) == 2 and term[0] == "segment_entry_count":
            count = term[1]
            if isinstance(count, int) and 1 <= count <= LARGEST_SEGMENT_ENTRY_COUNT:
                return count
            raise FormatError(0, f"segment_entry_count {count!r} is not 1 to {LARGEST_SEGMENT_ENTRY_COUNT}")
    raise FormatError(0, "no segment_entry_count")


def encode_config(segment_entry_count: int) -> bytes:
    """Bytes of `.config` as a node writes it: 83 bytes for a count of 2048."""
    head = "%% This file is auto-generated! Edit at your own risk!\n"
    return f"{head}{{segment_entry_count, {segment_entry_count}}}.".encode()
