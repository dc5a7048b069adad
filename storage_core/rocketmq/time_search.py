"""The first message of a queue at or after a time, as 5.3.3's LOWER search finds it: by store times, never by mtime.

Source of the rule: rocketmq.md 6.3, interface.md 13. A bisection: where store times step back it lands where it lands.
"""

from __future__ import annotations

from storage_core.files import system
from storage_core.files.file_chain import FileChain
from storage_core.files.window import OpenFiles
from storage_core.formats.rocketmq.message import BORN_HOST_V6, HEADER
from storage_core.rocketmq.consumequeue import ConsumeQueue

UNKNOWN = -1
STEPS = 64


class TimeSearch:
    """Searches queues of one store by store time; reads two small pieces a step."""

    def __init__(self, log: FileChain, files: OpenFiles) -> None:
        self._log = log
        self._files = files

    def lower_bound(self, queue: ConsumeQueue, start: int, stop: int, time_ms: int) -> int:
        """The ordinal in [start, stop] that the search gives for `time_ms` over the units [start, stop)."""
        if start >= stop:
            return stop
        floor, ceiling = self._file_with(queue, start, stop, time_ms)
        if self._store_ms(queue, ceiling) < time_ms:
            return ceiling + 1
        if self._store_ms(queue, floor) > time_ms:
            return floor
        return self._bisect(queue, floor, ceiling, time_ms, start)

    def _file_with(self, queue: ConsumeQueue, start: int, stop: int, time_ms: int) -> tuple[int, int]:
        """First and last ordinal of the first queue file whose last message is not before the time."""
        files = [
            (max(file.base_offset // 20, start), min(file.end // 20, stop) - 1)
            for file in queue.chain.files
            if file.base_offset // 20 < stop and file.end // 20 > start
        ]
        if not files:
            return start, stop - 1
        # File after file, as the broker does: where clocks step back a bisection would end in another one.
        fits = (file for file in files[:-1] if self._store_ms(queue, file[1]) >= time_ms)
        return next(fits, files[-1])

    def _bisect(self, queue: ConsumeQueue, floor: int, ceiling: int, time_ms: int, start: int) -> int:
        low, high, right = floor, ceiling, ceiling + 1
        while low <= high:
            middle = (low + high) // 2
            found = self._store_ms(queue, middle)
            if found == UNKNOWN:
                return start
            if found == time_ms:
                return self._first_equal(queue, floor, middle, time_ms)
            if found > time_ms:
                high, right = middle - 1, middle
            else:
                low = middle + 1
        return right

    def _first_equal(self, queue: ConsumeQueue, floor: int, at: int, time_ms: int) -> int:
        """The first of the equal times that end with `at`: step by step, as the broker goes, at first.

        Where a job wrote a million messages with one time that would take seconds; behind the first steps the times
        before `at` are taken as rising.
        """
        nearest = max(floor, at - STEPS)
        while at > nearest and self._store_ms(queue, at - 1) == time_ms:
            at -= 1
        if at > nearest or at == floor:
            return at
        low = floor
        while low < at:
            middle = (low + at) // 2
            if self._store_ms(queue, middle) < time_ms:
                low = middle + 1
            else:
                at = middle
        return at

    def _store_ms(self, queue: ConsumeQueue, ordinal: int) -> int:
        """Store time of a message; UNKNOWN when its record cannot be read."""
        unit = queue.units(self._files, ordinal, ordinal + 1)[0]
        place = int(unit["physical_offset"])
        file = self._log.file_at(place)
        if file is None or int(unit["size"]) <= 0:
            return UNKNOWN
        head = system.pread(self._files.descriptor(file.path), HEADER.size + 28, place - file.base_offset)
        if len(head) < HEADER.size + 28:
            return UNKNOWN
        at = 68 if int.from_bytes(head[36:40], "big") & BORN_HOST_V6 else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True)
