"""Runs a function for many items: concurrently if each call takes the time of a request, in sequence on a local disk.

The results are the same either way, in the order of the items; so is the error: that of the first item that fails.
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
    """The results of `function` for each item; `path` is where it reads.

    A concurrent call gets its own files, because open files belong to one thread; otherwise it gets `files`.
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
