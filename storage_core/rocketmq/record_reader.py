"""Records at scattered addresses of the log, decoded some at a time; those read last are kept, for the next to ask.

Which addresses, and what the records mean, is told by `lookup` and `unit_search`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles, Window
from storage_core.formats.layout import Positions
from storage_core.formats.rocketmq.message import MIN_SIZE, Flaw, Messages, decode

AT_ONCE = 1024


class RecordReader:
    """Reads records of the log below `log_end`."""

    def __init__(self, log: FileChain, files: OpenFiles, log_end: int) -> None:
        self._log, self._log_end = log, log_end
        self._window = Window(log, files)
        self._last: tuple[bytes, Messages] | None = None

    def records(self, places: Positions) -> Iterator[tuple[int, Messages]]:
        """The records at ascending addresses; the number of the first of them, and what was decoded.

        Where no right record below the end of the log begins at an address, the decoded one is flawed. Valid until the
        next step.
        """
        for first in range(0, len(places), AT_ONCE):
            part = places[first : first + AT_ONCE]
            asked = part.tobytes()
            if self._last is None or self._last[0] != asked:
                self._last = None
                self._last = asked, self._decoded(part)
            yield first, self._last[1]

    def _decoded(self, places: Positions) -> Messages:
        room = self._room(places)
        fits = room >= MIN_SIZE
        begin = np.where(fits, places, self._log.start)
        heads, _ = self._window.load_runs(begin, begin + np.where(fits, 4, 0))
        sizes = np.zeros(len(fits), np.int64)
        sizes[fits] = heads.view(">i4")
        sizes = np.where((sizes >= MIN_SIZE) & (sizes <= room), sizes, 0)
        buffer, starts = self._window.load_runs(begin, begin + sizes)
        messages = decode(buffer, starts, sizes)
        messages.mark(messages.column("physical_offset") != places, Flaw.PLACE)
        return messages

    def _room(self, places: Positions) -> Positions:
        """Bytes of the log from each address on, in its file and below the end of the log; 0 in a hole."""
        log = self._log
        if not log.files:
            return np.zeros(len(places), np.int64)
        file = np.searchsorted(log.base_array, places, "right") - 1
        room: Positions = np.maximum(np.minimum(log.end_array[file], self._log_end) - places, 0)
        room[file < 0] = 0
        return room
