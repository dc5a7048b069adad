"""Files kept open for repeated reads, up to a limit.

What is read from them is up to whoever requests a descriptor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from storage_core.closable import Closable
from storage_core.files import system

SHARE, MOST_OPEN = 4, 1024


def most_open_files() -> int:
    """How many files one reader or writer keeps open: a share of the process's limit, because there may be others.

    The queues of most stores fit, so a queue file is opened once, not once per slice or chunk of the log.
    """
    return min(max(system.open_file_limit() // SHARE, 1), MOST_OPEN)


class OpenFiles(Closable):
    """Descriptors for reading, opened at first use; beyond `most`, the least recently used are closed."""

    def __init__(self) -> None:
        self.most = most_open_files()
        self._open: OrderedDict[str, int] = OrderedDict()
        self._ahead: object | None = None

    def descriptor(self, path: str) -> int:
        """The descriptor of `path`. Raises OSError as `open` does."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        while len(self._open) >= self.most:
            system.close(self._open.popitem(last=False)[1])
        self._open[path] = descriptor = system.open_read(path)
        return descriptor

    def will_need(self, spans: Iterable[tuple[str, int, int]]) -> None:
        """Announces the spans (path, start, stop) that will be read next, in this order; remote ones are requested now.

        Does nothing on a local disk, and never changes what is read.
        """
        self._ahead = system.will_need(self._ahead, spans)

    def close(self) -> None:
        """Closes all files."""
        system.need_no_more(self._ahead)
        self._ahead = None
        while self._open:
            system.close(self._open.popitem()[1])
