"""The timeline of one profiled call as an inline SVG: streams, API calls and operators over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from stitchcuda.profiling.families import family
from stitchcuda.profiling.recording import CALL, OPERATORS, Range, Recording
from stitchcuda.profiling.rules import milliseconds
from stitchcuda.profiling.table import short_name

WIDTH, LEFT, ROW, GAP, TOP = 1160, 150, 22, 4, 24
"""Pixels: the whole width, the column of row names, a row's height, the space between rows, the axis."""
SMALLEST = 0.6
"""Pixels; what is narrower is drawn together with its neighbours."""
MOST_STREAMS, MOST_DEPTH = 8, 4
MOST_RECTANGLES = 6000
COLOURS = {
    "matrix": "#3b6fb6",
    "recurrent": "#7a5195",
    "reduction": "#2a9d8f",
    "pointwise": "#e9a23b",
    "copy": "#c8553d",
    "synchronise": "#9a9a9a",
    "other": "#7d8597",
    "launch": "#6c8ebf",
    "allocation": "#b07aa1",
    "host": "#8a94a3",
    "range": "#a3adba",
}


@dataclass(frozen=True)
class Box:
    """One thing on a row."""

    start: int
    end: int
    name: str
    colour: str
    detail: str = ""


def timeline_svg(recording: Recording) -> str:
    """One call (the first of those recorded) as an SVG element; '' for an empty recording."""
    windows = recording.windows(CALL) or [recording.span]
    start, end = windows[0]
    if end <= start:
        return ""
    rows = _rows(recording, start, end)
    if not any(boxes for _, boxes in rows):
        return ""
    height = TOP + len(rows) * (ROW + GAP) + 8
    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of one call"'
        f' xmlns="http://www.w3.org/2000/svg">'
    ]
    parts += _axis(end - start, height)
    scale = (WIDTH - LEFT - 10) / (end - start)
    for number, (name, boxes) in enumerate(rows):
        y = TOP + number * (ROW + GAP)
        parts.append(f'<text class="row" x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="lane" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 10}" height="{ROW}"/>')
        parts += _boxes(boxes, start, scale, y)
    parts.append("</svg>")
    return "\n".join(parts)


def legend() -> str:
    """The colours in words."""
    told = ("matrix", "recurrent", "reduction", "pointwise", "copy", "other", "launch", "synchronise", "allocation")
    items = (f'<span><i style="background:{COLOURS[name]}"></i>{name}</span>' for name in told)
    return f'<p class="legend">{"".join(items)}</p>'


def _rows(recording: Recording, start: int, end: int) -> list[tuple[str, list[Box]]]:
    inside = recording.within(start, end)
    rows: list[tuple[str, list[Box]]] = []
    streams = sorted({op.stream for op in inside.ops})
    for stream in streams[:MOST_STREAMS]:
        boxes = [
            Box(op.start, op.end, op.name, COLOURS[family(op.name, op.operator)], _facts(op.grid, op.block, op.bytes))
            for op in inside.ops
            if op.stream == stream
        ]
        rows.append((f"stream {stream}", boxes))
    if inside.api:
        calls = [Box(c.start, c.end, c.name, COLOURS[c.kind]) for c in inside.api]
        rows.append(("CUDA API", calls))
    rows += _nested([span for span in inside.ranges if span.name not in (CALL, OPERATORS)], start)
    return rows


def _facts(grid: tuple[int, int, int] | None, block: tuple[int, int, int] | None, size: int) -> str:
    if size:
        return f"{size / 2**20:.3g} MiB"
    return f"grid {grid}, block {block}" if grid and block else ""


def _nested(ranges: Sequence[Range], start: int) -> list[tuple[str, list[Box]]]:
    """Rows of operators and ranges of the busiest thread, outermost first."""
    threads: dict[int, int] = {}
    for span in ranges:
        threads[span.thread] = threads.get(span.thread, 0) + 1
    if not threads:
        return []
    main = max(threads, key=lambda thread: threads[thread])
    levels: list[list[Box]] = [[] for _ in range(MOST_DEPTH)]
    ends: list[int] = []
    for span in sorted((s for s in ranges if s.thread == main), key=lambda s: (s.start, -s.end)):
        while ends and ends[-1] <= span.start:
            ends.pop()
        if len(ends) < MOST_DEPTH:
            colour = COLOURS[family(span.name)] if span.operator else COLOURS["range"]
            levels[len(ends)].append(Box(max(span.start, start), span.end, span.name, colour))
        ends.append(span.end)
    return [("operators" if n == 0 else "", boxes) for n, boxes in enumerate(levels) if boxes]


def _axis(length: int, height: int) -> list[str]:
    step = _step(length / 8)
    parts, at = [], 0.0
    while at <= length:
        x = LEFT + at * (WIDTH - LEFT - 10) / length
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="{x + 3:.1f}" y="{TOP - 10}">{_time(at)}</text>')
        at += step
    return parts


def _time(nanoseconds: float) -> str:
    return f"{nanoseconds * 1e-9:g} s" if nanoseconds >= 1e9 else f"{nanoseconds * 1e-6:g} ms" if nanoseconds else "0"


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least so large."""
    power = 1.0
    while power * 10 <= least:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _boxes(boxes: Iterable[Box], start: int, scale: float, y: int) -> list[str]:
    """Rectangles; those too narrow to see are merged with neighbours of their colour, and counted."""
    parts: list[str] = []
    pending: tuple[float, float, str, int] | None = None

    def flush() -> None:
        nonlocal pending
        if pending is not None:
            low, high, colour, count = pending
            parts.append(_rectangle(low, max(high - low, SMALLEST), y, colour, f"{count} short ones", ""))
            pending = None

    for box in sorted(boxes, key=lambda box: box.start):
        low, high = LEFT + (box.start - start) * scale, LEFT + (box.end - start) * scale
        high = min(high, WIDTH - 10.0)
        if high - low < SMALLEST:
            if pending is not None and pending[2] == box.colour and low - pending[1] < SMALLEST:
                pending = (pending[0], max(high, pending[1]), box.colour, pending[3] + 1)
                continue
            flush()
            pending = (low, high, box.colour, 1)
            continue
        flush()
        length = milliseconds((box.end - box.start) * 1e-9)
        told = " ".join(filter(None, (box.name[:300], f"({length})", box.detail)))
        parts.append(_rectangle(low, high - low, y, box.colour, told, short_name(box.name)))
        if len(parts) >= MOST_RECTANGLES:
            break
    flush()
    return parts


def _rectangle(x: float, width: float, y: int, colour: str, told: str, label: str) -> str:
    shape = f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour}"/>'
    fits = int((width - 6) / 6.2)
    text = ""
    if label and fits >= 4:
        shown = label if len(label) <= fits else label[: fits - 1] + "…"
        text = f'<text class="in" x="{x + 3:.2f}" y="{y + 15}">{escape(shown)}</text>'
    return f"<g><title>{escape(told)}</title>{shape}{text}</g>"
