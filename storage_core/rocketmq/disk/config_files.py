"""A store's `config/` directory: topics and the committed offsets of consumer groups. Damage here affects no message.

If a file is missing, empty or malformed, its `.bak` is used instead. Source of the rules: rocketmq.md 1.5.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from storage_core.errors import CorruptionError, FormatError, StoreNotFoundError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.small_file import read_at
from storage_core.formats.java_numbers import fits, natural_of, whole_of
from storage_core.formats.rocketmq import paths
from storage_core.formats.rocketmq.config_json import decode_config
from storage_core.store import QueueKey

MAX_SIZE = 256 << 20
"""A million topics take this many bytes; longer files are not read."""
FIRST_BYTES = 4096
COPY_WINDOW_NS = 10_000_000_000
"""Files written within this many nanoseconds of each other may have been copied together: their times prove nothing."""


ROCKSDB_OFFSETS = ("consumerOffsets", "rdb")
"""Folders in which a broker of 5.x keeps committed offsets with `storeType=defaultRocksDB`, and with
`configManagerVersion=v2`.
"""


class _LongFileError(FormatError):
    """A config file that is not read because of its length; whether a broker would accept it is unknown."""


def read_config(root: str, name: str) -> dict[str, Any]:
    """A config file as a dictionary; empty when neither it nor its `.bak` can be read."""
    return _first(root, name, (OSError, FormatError))


def config_to_change(root: str, name: str) -> dict[str, Any]:
    """`read_config` for callers that rewrite the file: one that cannot be read now must not be treated as empty.

    Raises OSError, and CorruptionError for a file that is too long to be read.
    """
    try:
        return _first(root, name, (FileNotFoundError, NotADirectoryError, FormatError), refuse_long=True)
    except _LongFileError as error:
        raise error.at(os.path.join(root, paths.CONFIG, name)) from None


def _first(root: str, name: str, passed_over: tuple[type[Exception], ...], refuse_long: bool = False) -> dict[str, Any]:
    for file_name in (name, f"{name}.bak"):
        try:
            return decode_config(_content(os.path.join(root, paths.CONFIG, file_name)))
        except passed_over as error:
            if refuse_long and isinstance(error, _LongFileError):
                raise
    return {}


def needed_config(root: str, name: str) -> dict[str, Any]:
    """`read_config` for callers that need this file alone; empty if there is none, as for a broker.

    Raises StoreNotFoundError when a file cannot be accessed, CorruptionError when neither it nor its `.bak` is JSON, or
    when one that is tried is too long to be read.
    """
    broken: CorruptionError | None = None
    for file_name in (name, f"{name}.bak"):
        path = os.path.join(root, paths.CONFIG, file_name)
        try:
            data = _content(path)
            if data:
                return decode_config(data)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StoreNotFoundError(f"{path}: {error.strerror}; read as a user who may, or copy the file") from None
        except FormatError as error:
            broken = broken or error.at(path)
            if isinstance(error, _LongFileError):
                break
    if broken is not None:
        raise broken
    return {}


def config_problem(path: str) -> str | None:
    """Why a broker cannot use a config file; None if it can, or if the file is missing.

    Raises OSError when the file cannot be read.
    """
    try:
        decode_config(_content(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FormatError as error:
        return error.reason
    return None


def topic_table(root: str) -> dict[str, dict[str, Any]]:
    """Topics of topics.json by name."""
    table = _dictionaries(read_config(root, "topics.json").get("topicConfigTable"))
    return {name: topic for name, topic in table.items() if _is_text(name)}


def compacted_topics(root: str) -> frozenset[str]:
    """Topics of which a broker keeps and serves the last message of each key (rocketmq.md 3.9)."""
    return _topics_with(root, "cleanup.policy", "COMPACTION")


def batch_topics(root: str) -> frozenset[str]:
    """Topics that a broker keeps in batch queues (rocketmq.md 3.7)."""
    return _topics_with(root, "queue.type", "BatchCQ")


def _topics_with(root: str, attribute: str, value: str) -> frozenset[str]:
    names = set()
    for name, topic in topic_table(root).items():
        attributes = topic.get("attributes")
        if isinstance(attributes, dict) and attributes.get(attribute) == value:
            names.add(name)
    return frozenset(names)


def offsets_file(root: str) -> str:
    """The config file in which the broker keeps the committed offsets of groups: a different one with `enableLmq`.

    If both exist, the broker has run with both settings. It writes the current one every five seconds, so the newer
    file is used; in a copy, whose files are equally old, the one of light queues.
    """
    light, plain = (_written_ns(root, name) for name in (paths.LIGHT_GROUP_OFFSETS, paths.GROUP_OFFSETS))
    is_light = light is not None and (plain is None or plain - light <= COPY_WINDOW_NS)
    return paths.LIGHT_GROUP_OFFSETS if is_light else paths.GROUP_OFFSETS


def _written_ns(root: str, name: str) -> int | None:
    """When a config file, or else its `.bak`, was written; None when there is none."""
    for file_name in (name, f"{name}.bak"):
        with suppress(OSError):
            return system.stat(os.path.join(root, paths.CONFIG, file_name)).stamp.mtime_ns
    return None


def refuse_offsets_in_rocksdb(root: str, advice: str) -> None:
    """Raises UnsupportedFormatError if the broker keeps committed offsets in RocksDB: a file with offsets is then from
    before that, and the lack of one does not mean that there are none.
    """
    for name in ROCKSDB_OFFSETS:
        folder = os.path.join(root, paths.CONFIG, name)
        if system.is_folder(folder):
            raise UnsupportedFormatError(f"{folder}: this broker keeps its offsets in RocksDB, which mqstore {advice}")


def committed_offsets(root: str) -> dict[str, dict[QueueKey, int]]:
    """The committed offsets of each consumer group: the next offset to consume, by queue.

    Raises StoreNotFoundError or CorruptionError: an unreadable file does not mean that the store has no groups.
    """
    groups: dict[str, dict[QueueKey, int]] = {}
    content = needed_config(root, offsets_file(root))
    light = content.get("lmqOffsetTable")
    tables = [*_dictionaries(content.get("offsetTable")).items()]
    # A group of light queues has one offset per topic, that of queue 0.
    tables += [(str(name), {"0": offset}) for name, offset in (light if isinstance(light, dict) else {}).items()]
    for name, offsets in tables:
        topic, separator, group = name.partition("@")
        if not separator or "@" in group or not _is_text(name):
            continue
        for queue_id, offset in offsets.items():
            number = whole_of(str(queue_id), 32)
            if number is not None and isinstance(offset, int) and fits(offset, 64):
                groups.setdefault(group, {})[topic, number] = offset
    return groups


def _is_text(name: str) -> bool:
    """Whether a name is more than an escape of half a character."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def delay_offsets(root: str) -> dict[int, int]:
    """The offsets in delayOffset.json by delay level: the queue offset that the broker delivers next from its queue."""
    found = read_config(root, "delayOffset.json").get("offsetTable")
    table = found if isinstance(found, dict) else {}
    levels = ((natural_of(level, 32), offset) for level, offset in table.items())
    return {level: offset for level, offset in levels if level is not None and isinstance(offset, int)}


def _content(path: str) -> bytes:
    """The bytes of a config file; reading stops as soon as they cannot be one. Raises FormatError."""
    start = read_at(path, FIRST_BYTES).lstrip()
    if start and not start.startswith(b"{"):
        raise FormatError(0, "not a JSON object")
    data = read_at(path, MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        reason = f"longer than the {MAX_SIZE >> 20} MiB that mqstore reads of a config file; move it away or shorten it"
        raise _LongFileError(MAX_SIZE, reason)
    return data


def _dictionaries(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        return {}
    return {str(name): inner for name, inner in value.items() if isinstance(inner, dict)}
