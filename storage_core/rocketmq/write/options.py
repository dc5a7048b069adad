"""The parsed options of a write, and the geometry of a new store.

What an option does is described where it is used. Source of names and defaults: docs/write.md "Options".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError
from storage_core.formats.rocketmq.hosts import pack_host
from storage_core.formats.rocketmq.indexfile import Geometry
from storage_core.options import values
from storage_core.options.option import ROCKETMQ, WRITE, Option, Parser, parsed

DEFAULT_LOG_FILE_SIZE = 1 << 30
DEFAULT_QUEUE_ENTRIES = 300_000
MAX_RECORD_SIZE = 4_194_304
MAX_PROPERTIES_SIZE = 32_767
MAX_TOPIC_SIZE = 127


def _host(name: str, text: str) -> bytes:
    try:
        return pack_host(text)
    except ValueError as error:
        raise OptionError(name, text, str(error)) from None


def _own(name: str, takes: str, default: str | None, meaning: str, parse: Parser) -> Option:
    return Option(name, takes, default, meaning, WRITE, parse, engine=ROCKETMQ)


WRITE_OPTIONS = (
    Option("topic", "name", None, "for all rows", WRITE),
    _own("queues", "number", "4", "queue count of a new topic", values.count),
    _own("preserve", "false, true", "false", "keep offsets, times and raw bodies", values.flag),
    _own("publish", "append, shards", "append", "into one store, or a store per task",
         values.choice("append", "shards")),
    _own("commitLogFileSize", "bytes", None, "of a new store", values.size_of(256)),
    _own("consumeQueueFileEntries", "number", None, "of a new store", values.count),
    _own("indexSlots", "number", None, "of a new store", values.count),
    _own("indexEntries", "number", None, "of a new store", values.count_of(2)),
    _own("commitLogPath", "comma list of directories", None, "a commit log outside of STORE", values.directories),
    Option("lockTimeout", "duration", "60s", "how long a write waits for another", WRITE, values.duration_s),
    _own("storeHost", "ip:port", "127.0.0.1:10911", "of written messages", _host),
    _own("assignMsgId", "false, true", "false", "give rows without UNIQ_KEY one", values.flag),
    _own("txnAppId", "text", None, "makes a batch write idempotent, with txnVersion", values.filled),
    _own("txnVersion", "number", None, "makes a batch write idempotent, with txnAppId", values.count_of(0)),
)  # fmt: skip
NAMES = tuple(option.name for option in WRITE_OPTIONS)


LARGEST_FILE_SIZE = (1 << 31) - 1
"""The largest `mappedFileSizeCommitLog`, an int of Java's."""


@dataclass(frozen=True)
class WriteSettings:
    """A write's options. `queue_entries_given`, `index_given`: the sizes of queue files, and of index files, were set,
    not taken from the defaults.
    """

    topic: str | None = None
    queues: int = 4
    preserve: bool = False
    shards: bool = False
    log_file_size: int = DEFAULT_LOG_FILE_SIZE
    queue_entries: int = DEFAULT_QUEUE_ENTRIES
    queue_entries_given: bool = False
    index: Geometry = field(default_factory=Geometry)
    index_given: bool = False
    commit_log_path: tuple[str, ...] = ()
    lock_timeout_s: float = 60.0
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    assign_id: bool = False
    query: str | None = None
    version: int = 0


def write_settings(options: Mapping[str, Any]) -> WriteSettings:
    """The settings of a write. Raises OptionError for an unknown name or a wrong value."""
    given = parsed(options, WRITE_OPTIONS, "options of a write")
    if (size := given["commitLogFileSize"]) is not None and size > LARGEST_FILE_SIZE:
        raise OptionError("commitLogFileSize", str(size), f"a broker's files have at most {LARGEST_FILE_SIZE:,} bytes")
    app, version = given["txnAppId"], given["txnVersion"]
    if (app is None) != (version is None):
        name, value = ("txnAppId", app) if version is None else ("txnVersion", str(version))
        raise OptionError(name, value, "goes with the other of txnAppId and txnVersion; give both")
    if given["publish"] == "shards" and given["commitLogPath"]:
        log = ",".join(given["commitLogPath"])
        raise OptionError("commitLogPath", log, "excludes publish=shards: the store of each task has its own log")
    default = Geometry()
    slots, entries = given["indexSlots"], given["indexEntries"]
    return WriteSettings(
        topic=given["topic"],
        queues=given["queues"],
        preserve=given["preserve"],
        shards=given["publish"] == "shards",
        log_file_size=given["commitLogFileSize"] or DEFAULT_LOG_FILE_SIZE,
        queue_entries=given["consumeQueueFileEntries"] or DEFAULT_QUEUE_ENTRIES,
        queue_entries_given=given["consumeQueueFileEntries"] is not None,
        index=Geometry(slots or default.slots, entries or default.entries),
        index_given=slots is not None or entries is not None,
        commit_log_path=given["commitLogPath"] or (),
        lock_timeout_s=given["lockTimeout"],
        store_host=given["storeHost"],
        assign_id=given["assignMsgId"],
        query=None if app is None else f"txn:{app}",
        version=version or 0,
    )
