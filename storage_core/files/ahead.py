"""Questions that may go side by side where each takes the time of a request; on a local disk one after the other.

The answers are the same either way, in the order of the items; so is the error: that of the first item that fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from storage_core.files.address import is_remote
from storage_core.files.open_files import OpenFiles
from storage_core.files.remote.threads import questions

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_inside = threading.local()


def side_by_side(
    function: Callable[[Item, OpenFiles], Answer], items: Iterable[Item], files: OpenFiles, path: str
) -> Iterator[Answer]:
    """`function` of each item; `path` says where what it reads lies.

    Side by side each call gets files of its own, for open files belong to one thread; else it gets `files`.
    """
    if not is_remote(path) or getattr(_inside, "busy", False):
        for item in items:
            yield function(item, files)
        return
    yield from questions().map(lambda item: _alone(function, item), items)


def _alone(function: Callable[[Item, OpenFiles], Answer], item: Item) -> Answer:
    _inside.busy = True
    try:
        with OpenFiles() as own:
            return function(item, own)
    finally:
        _inside.busy = False
