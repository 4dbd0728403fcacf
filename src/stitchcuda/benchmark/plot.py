"""The distribution of a sweep's speedups as inline SVG: a bar for each task, longest first, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from stitchcuda.benchmark.model import Record

WIDTH, ROW, LEFT, RIGHT, TOP, FOOT = 960, 22, 300, 90, 26, 8
LONGEST = 38
"""Characters of a name that fit beside the bars."""
TICKS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


def speedup_svg(records: Sequence[Record], over: str = "over_best") -> str:
    """Bars from 1 on; failures stand below the bars with their status. Empty without any record that counts."""
    scored = [record for record in records if record.scored]
    solved = sorted(
        (record for record in scored if record.solved and record.speedup.get(over, 0) > 0),
        key=lambda record: -record.speedup[over],
    )
    failures = [record for record in scored if record not in solved]
    if not scored:
        return ""
    values = [record.speedup[over] for record in solved]
    if over == "over_best":
        values += [max(end, 0.05) for record in solved for end in record.interval or ()]
    low, high = min([0.5, *values]), max([2.0, *values])
    low, high = low / 1.08, high * 1.08

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    height = TOP + ROW * len(scored) + FOOT
    parts = [
        f'<svg class="speedups" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="speedup of each task, log scale">'
    ]
    for tick in (tick for tick in TICKS if low < tick < high):
        strong = " one" if tick == 1 else ""
        parts.append(f'<line class="grid{strong}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{TOP - 10}" text-anchor="middle">{tick:g}x</text>')
    for index, record in enumerate([*solved, *failures]):
        y = TOP + ROW * index
        name = record.task + (f" #{record.seed}" if record.seed else "")
        name = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        parts.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(_bar(record, over, y, x) if record in solved else _failure(record, y, x(1.0)))
    return "\n".join([*parts, "</svg>"])


def _bar(record: Record, over: str, y: float, x: Callable[[float], float]) -> str:
    value = record.speedup[over]
    start, end = sorted((x(1.0), x(value)))
    kind = "gain" if value >= 1 else "loss"
    whisker = ""
    if record.interval is not None and over == "over_best":
        low, high = (x(max(end, 0.05)) for end in record.interval)
        whisker = f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 11}" y2="{y + 11}"/>'
    label = max(end, x(record.interval[1]) if record.interval is not None and over == "over_best" else end)
    return (
        f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1.5):.1f}" height="{ROW - 7}"/>'
        f'{whisker}<text x="{label + 6:.1f}" y="{y + 15}">{value:.2f}x</text>'
    )


def _failure(record: Record, y: float, start: float) -> str:
    return f'<text class="failure" x="{start + 6:.1f}" y="{y + 15}">{escape(record.status)}</text>'
