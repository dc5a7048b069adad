"""The options of a write, parsed; and the geometry that a new store gets.

What an option does is described where it is used. Source of names and defaults: DESIGN 7.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError, closest
from storage_core.formats.rocketmq.hosts import pack_host
from storage_core.formats.rocketmq.indexfile import Geometry

DEFAULT_LOG_FILE_SIZE = 1 << 30
DEFAULT_QUEUE_ENTRIES = 300_000
MAX_RECORD_SIZE = 4_194_304
MAX_PROPERTIES_SIZE = 32_767
MAX_TOPIC_SIZE = 127

NAMES = (
    "topic", "queues", "preserve", "publish", "commitLogFileSize", "consumeQueueFileEntries", "indexSlots",
    "indexEntries", "commitLogPath", "lockTimeout", "storeHost", "assignMsgId", "txnAppId", "txnVersion",
)  # fmt: skip
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True)
class WriteSettings:
    """A write's options. `geometry_given` names those of the geometry that were set."""

    topic: str | None = None
    queues: int = 4
    preserve: bool = False
    shards: bool = False
    log_file_size: int = DEFAULT_LOG_FILE_SIZE
    queue_entries: int = DEFAULT_QUEUE_ENTRIES
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
    for name in options:
        if name not in NAMES:
            near = closest(name, list(NAMES))
            hint = f"did you mean {' or '.join(near)}?" if near else f"a write takes {', '.join(NAMES)}"
            raise OptionError(name, str(options[name]), f"there is no such option; {hint}")
    given = {name: value for name, value in options.items() if value is not None}
    txn = [name for name in ("txnAppId", "txnVersion") if name in given]
    if len(txn) == 1:
        raise OptionError(txn[0], str(given[txn[0]]), "goes with the other of txnAppId and txnVersion; give both")
    default = Geometry()
    return WriteSettings(
        topic=_text(given, "topic"),
        queues=_count(given, "queues", 4),
        preserve=_flag(given, "preserve"),
        shards=_choice(given, "publish", ("append", "shards")) == "shards",
        log_file_size=_count(given, "commitLogFileSize", DEFAULT_LOG_FILE_SIZE, 256),
        queue_entries=_count(given, "consumeQueueFileEntries", DEFAULT_QUEUE_ENTRIES),
        index=Geometry(_count(given, "indexSlots", default.slots), _count(given, "indexEntries", default.entries, 2)),
        index_given="indexSlots" in given or "indexEntries" in given,
        commit_log_path=_paths(given.get("commitLogPath")),
        lock_timeout_s=_duration(given, "lockTimeout", 60.0),
        store_host=_host(given.get("storeHost", "127.0.0.1:10911")),
        assign_id=_flag(given, "assignMsgId"),
        query=None if not txn else f"txn:{given['txnAppId']}",
        version=_count(given, "txnVersion", 0, 0),
    )


def _text(given: Mapping[str, Any], name: str) -> str | None:
    return None if name not in given else str(given[name])


def _count(given: Mapping[str, Any], name: str, default: int, least: int = 1) -> int:
    if name not in given:
        return default
    match = _SIZE.fullmatch(str(given[name]).strip())
    value = int(match[1]) * _FACTORS[match[2].lower()] if match else -1
    if not least <= value < 1 << 63:
        raise OptionError(name, str(given[name]), f"it is a whole number of at least {least}")
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    return _choice(given, name, ("false", "true")) == "true"


def _choice(given: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = str(given.get(name, allowed[0])).strip().lower()
    if value not in allowed:
        raise OptionError(name, str(given[name]), f"it is one of {', '.join(allowed)}")
    return value


def _duration(given: Mapping[str, Any], name: str, default: float) -> float:
    if name not in given:
        return default
    match = _DURATION.fullmatch(str(given[name]).strip())
    if not match:
        raise OptionError(name, str(given[name]), "it is a duration such as 500ms, 60s or 5m")
    return float(match[1]) * _SECONDS[match[2].lower()]


def _paths(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value or ()
    return tuple(str(name).strip() for name in names if str(name).strip())


def _host(value: Any) -> bytes:
    try:
        return pack_host(str(value))
    except ValueError as error:
        raise OptionError("storeHost", str(value), str(error)) from None
