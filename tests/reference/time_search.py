"""The slow twin of 5.3.3's search for the offset of a time (LOWER), over lists. From the model of the format page."""

from __future__ import annotations

Entry = tuple[int, int]


def offset_by_time(
    files: list[list[Entry]], per_file: int, min_offset: int, max_offset: int, min_physical_offset: int, time_ms: int
) -> int:
    """`files`: for each queue file its units as (physical offset, store time or -1 if it cannot be read)."""

    def clamped(offset: int) -> int:
        return min(max(offset, min_offset), max_offset)

    if not files:
        return clamped(0)
    number = next((k for k in range(len(files) - 1) if files[k][-1][1] >= time_ms), len(files) - 1)
    entries, base = files[number], number * per_file
    low = floor = max(0, min_offset - base)
    high = ceiling = len(entries) - 1
    if entries[ceiling][1] < time_ms:
        return clamped(base + ceiling + 1)
    if entries[floor][1] > time_ms:
        return clamped(base)
    hit = right = -1
    while high >= low:
        middle = (low + high) // 2
        physical_offset, found_ms = entries[middle]
        if physical_offset < min_physical_offset:
            low = middle + 1
            continue
        if found_ms < 0:
            return clamped(0)
        if found_ms == time_ms:
            hit = middle
            break
        if found_ms > time_ms:
            high, right = middle - 1, middle
        else:
            low = middle + 1
    if hit < 0:
        return clamped(base + right)
    while hit > floor and entries[hit - 1][1] == time_ms:
        hit -= 1
    return clamped(base + hit)
