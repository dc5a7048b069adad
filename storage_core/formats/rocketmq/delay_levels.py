"""When a message of SCHEDULE_TOPIC_XXXX is due: the delay of its level (rocketmq.md 3.2, a broker's default table)."""

from __future__ import annotations

_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def delay_ms(level: str | None) -> int | None:
    """The delay of a DELAY property in milliseconds: 0 without one or a level; None for a text that is no number."""
    if level is None:
        return 0
    try:
        number = int(level)
    except ValueError:
        return None
    if not -(1 << 31) <= number < 1 << 31 or level != level.strip() or "_" in level:
        return None
    return 0 if number <= 0 else _SECONDS[min(number, len(_SECONDS)) - 1] * 1000
