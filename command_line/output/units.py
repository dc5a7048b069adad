"""Numbers, sizes, times and durations in readable form."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
STEP = 1024


def size_text(size: int) -> str:
    """Bytes in the unit that gives one to four digits: `912 B`, `1.5 KiB`, `260 MiB`."""
    value, unit = float(size), 0
    while round(abs(value), 1 if abs(value) < 10 else 0) >= STEP and unit < len(_UNITS) - 1:
        value, unit = value / STEP, unit + 1
    if not unit:
        return f"{size} B"
    return f"{value:.1f} {_UNITS[unit]}" if abs(value) < 10 else f"{value:.0f} {_UNITS[unit]}"


def count_text(count: int) -> str:
    """A whole number with thousands separators."""
    return f"{count:,}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,234 messages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def moment_text(iso: str | None) -> str:
    """An ISO 8601 time to the second, with a space between date and time; empty for None."""
    return "" if iso is None else iso.split(".")[0].replace("T", " ").rstrip("Z")


def duration_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `5 h 12 min`, `2 d 3 h`."""
    whole = max(0, round(seconds))
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
