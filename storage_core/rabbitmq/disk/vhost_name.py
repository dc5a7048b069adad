"""The vhost name of a directory: the one in `.vhost`, unless another is proven.

A node knows its vhosts from its tables, names their folders by a hash, and rewrites `.vhost` at each startup
(rabbitmq.md 1.3, 4.1): a name whose hash is the folder's name is the vhost's, whatever `.vhost` states.
"""

from __future__ import annotations

import re

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.disk.detect import names_in
from storage_core.rabbitmq.disk.span_reader import read_short_file

LONGEST_NAME = 255
"""Most bytes of a vhost's name, which is a short string in AMQP 0-9-1."""
_HASH = re.compile("[0-9A-Z]{1,25}")


def vhost_name(root: str) -> bytes:
    """The name proven by the folder's hash, else that in `.vhost`, else in a queue's stub, else the folder's own name.

    Raises CorruptionError for a `.vhost` that is too long to be read.
    """
    folder, stated = root.rpartition("/")[2], _stated_name(root)
    if stated and paths.vhost_directory(stated) == folder:
        return stated
    stub = None if stated and not _HASH.fullmatch(folder) else _of_a_stub(root)
    proven = next((name for name in (stub, b"/") if name is not None and paths.vhost_directory(name) == folder), None)
    return proven or stated or stub or folder.encode()


def vhost_flaw(root: str) -> str | None:
    """Why a node does not keep the content of `.vhost`; None if it does, or if there is no such file."""
    if paths.VHOST_FILE not in names_in(root):
        return None
    stated, name = _stated_name(root), vhost_name(root)
    return None if stated == name else f"it does not name the vhost {name.decode('utf-8', 'replace')!r}"


def _stated_name(root: str) -> bytes:
    """The content of `.vhost`; b"" if it is missing, or longer than a name."""
    file = f"{root}/{paths.VHOST_FILE}"
    try:
        data = read_short_file(file)
    except FormatError as error:
        raise error.at(file) from None
    return data if len(data) <= LONGEST_NAME else b""


def _of_a_stub(root: str) -> bytes | None:
    folder = f"{root}/{paths.QUEUES_FOLDER}"
    for name in sorted(names_in(folder)):
        try:
            return paths.parse_stub(read_short_file(f"{folder}/{name}/{paths.STUB_FILE}")).vhost
        except (FormatError, NotADirectoryError):
            continue
    return None
