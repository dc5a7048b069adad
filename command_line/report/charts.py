"""Charts as SVG: stacked bars over time, a histogram of sizes, and labelled bars. Colours are CSS classes of the page.

Counting belongs to `facts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from command_line.output.units import count_text, size_text
from command_line.report.facts import OTHERS, STEPS, OverTime, largest_size

WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 42
TICKS_MS = [unit * count for unit, counts in (
    (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)), (60_000, (1, 2, 5, 10, 15, 30)),
    (3_600_000, (1, 2, 3, 6, 12)), (86_400_000, (1, 2, 7, 14, 30, 91, 182, 365, 730, 1826, 3652, 36525, 365250)),
) for count in counts]  # fmt: skip
MOST_TICKS = 8
MOST_SIZES = 24
DAY_MS = 86_400_000


def over_time(data: OverTime) -> str:
    """Messages by time, stacked by topic, above a true time axis in UTC."""
    totals = data.counts.sum(axis=0)
    scale = _nice(int(totals.max()))
    step = (WIDTH - LEFT - RIGHT) / len(totals)
    parts = [*_grid(scale)]
    for column in range(len(totals)):
        floor, labels = 0, []
        for series, name in enumerate(data.names):
            count = int(data.counts[series, column])
            if count:
                labels.append(f"{name}: {count_text(count)}")
                parts.append(_bar(LEFT + column * step, step - 1, floor, count, scale, _colour(series, name)))
                floor += count
        if labels:
            start = _moment(data.start_ms + column * data.bin_ms, "s" if data.bin_ms >= 1000 else "ms")
            shown = escape("\n".join([f"{start} UTC", *labels]))
            area = f'x="{LEFT + column * step:.1f}" y="{TOP}" width="{step:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            parts.append(f'<rect class="hover" {area}><title>{shown}</title></rect>')
    parts += _time_axis(data.start_ms, data.bin_ms * len(totals))
    return _svg(parts, "Messages over time") + _legend(data.names)


def sizes(counts: Mapping[int, int]) -> str:
    """Messages by size. `counts` are per step, with STEPS steps per doubling; a wide range is shown by doublings."""
    steps = 1
    if max(counts) - min(counts) >= MOST_SIZES:
        steps, merged = STEPS, dict[int, int]()
        for step, count in counts.items():
            merged[-(-step // STEPS)] = merged.get(-(-step // STEPS), 0) + count
        counts = merged
    shown = range(max(0, min(counts) - 1), max(counts) + 2)
    scale, width = _nice(max(counts.values())), (WIDTH - LEFT - RIGHT) / len(shown)
    parts = [*_grid(scale)]
    for number, step in enumerate(shown):
        count, x = counts.get(step, 0), LEFT + number * width
        low, high = size_text(largest_size((step - 1) * steps) + 1), size_text(largest_size(step * steps))
        if count:
            bar = _bar(x + 1, width - 2, 0, count, scale, "c0")
            parts.append(f"<g>{bar}<title>{low} to {high}: {count_text(count)}</title></g>")
        if number % (1 + len(shown) // 13) == 0:
            parts.append(_text(x + width / 2, HEIGHT - BOTTOM + 18, f"≤ {high}", "middle"))
    return _svg(parts, "Messages by size")


def bars(rows: Sequence[tuple[str, int, str]]) -> str:
    """A bar for each (name, number, text of the number); the longest takes the full width."""
    most = max((number for _, number, _ in rows), default=0) or 1
    lines = "".join(
        f'<div class="name" title="{escape(name)}">{escape(name)}</div>'
        f'<div class="track"><i style="width:{max(0, number) / most:.2%}"></i></div><div class="number">{text}</div>'
        for name, number, text in rows
    )
    return f'<div class="bars">{lines}</div>'


def _svg(parts: Sequence[str], title: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f'<div class="chart"><svg {box}>{"".join(parts)}</svg></div>'


def _legend(names: Sequence[str]) -> str:
    items = "".join(f'<span><i class="{_colour(n, name)}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{items}</p>'


def _colour(series: int, name: str) -> str:
    return "others" if name == OTHERS else f"c{series}"


def _bar(x: float, width: float, floor: int, count: int, scale: int, colour: str) -> str:
    room = HEIGHT - TOP - BOTTOM
    height = max(1.0, room * count / scale)
    y = TOP + room * (1 - floor / scale) - height
    return f'<rect class="{colour}" x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _nice(most: int) -> int:
    """A round number of at least `most`, with round quarters if it is above 2."""
    if most <= 2:
        return max(1, most)
    power = 1
    while True:
        for factor in (4, 8, 12, 16, 20, 24, 32):
            if most <= factor * power:
                return factor * power
        power *= 10


def _grid(scale: int) -> Iterator[str]:
    room = HEIGHT - TOP - BOTTOM
    for part in range(5) if scale % 4 == 0 else (0, 1):
        share = part / 4 if scale % 4 == 0 else float(part)
        y = TOP + room * (1 - share)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, count_text(round(scale * share)), "end")


def _time_axis(start_ms: int, span_ms: float) -> Iterator[str]:
    tick = next((tick for tick in TICKS_MS if span_ms / tick <= MOST_TICKS), TICKS_MS[-1])
    room, last_day = WIDTH - LEFT - RIGHT, ""
    for number in range(-(-start_ms // tick), int((start_ms + span_ms) // tick) + 1):
        moment = number * tick
        x = LEFT + room * (moment - start_ms) / span_ms
        day, clock = _moment(moment, "ms").split(" ")
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>'
        if tick < DAY_MS:
            digits = 12 if tick < 1000 else 8 if tick < 60_000 else 5
            yield _text(x, HEIGHT - BOTTOM + 18, clock[:digits], "middle")
        if day != last_day:
            yield _text(x, HEIGHT - BOTTOM + (34 if tick < DAY_MS else 18), day, "middle")
            last_day = day


def _moment(ms: float, unit: str) -> str:
    return str(np.datetime64(int(ms), "ms").astype(f"M8[{unit}]")).replace("T", " ")
