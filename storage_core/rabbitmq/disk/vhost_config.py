"""A vhost's `.config`: how many entries a segment of its queues has.

Source of the rule: rabbitmq.md 1.3; how a node handles a broken file was observed on a real node.
"""

from __future__ import annotations

from storage_core.errors import FormatError, UnsupportedFormatError
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.erlang import erlang_text
from storage_core.rabbitmq.disk.detect import names_in
from storage_core.rabbitmq.disk.span_reader import read_short_file


def entry_count(root: str) -> int:
    """Entries per segment; 16384 if the file is missing or holds no Erlang terms, as for a node.

    Raises CorruptionError if a node would not start the vhost: the file states no count, or an invalid one.
    """
    file = f"{root}/{paths.CONFIG_FILE}"
    try:
        data = _content(root)
        return paths.LEGACY_SEGMENT_ENTRY_COUNT if data is None or _flaw(data) else paths.parse_config(data)
    except FormatError as error:
        raise error.at(file) from None


def check_writable(root: str, count: int) -> None:
    """Raises UnsupportedFormatError if a segment of `count` entries has some that its 14 bits cannot address."""
    if count > paths.LEGACY_SEGMENT_ENTRY_COUNT:
        raise UnsupportedFormatError(
            f"{root}/{paths.CONFIG_FILE}: segment_entry_count {count} is more than the "
            f"{paths.LEGACY_SEGMENT_ENTRY_COUNT} entries that a segment can hold; such a store is read, not written"
        )


def config_flaw(root: str) -> str | None:
    """Why a node uses 16384 although there is a file; None if it does not."""
    data = _content(root)
    return None if data is None else _flaw(data)


def _content(root: str) -> bytes | None:
    data = read_short_file(f"{root}/{paths.CONFIG_FILE}")
    return None if not data and paths.CONFIG_FILE not in names_in(root) else data


def _flaw(data: bytes) -> str | None:
    try:
        erlang_text.parse(data.decode("utf-8", "replace"))
    except FormatError as error:
        return f"it holds no Erlang terms ({error.reason})"
    return None
