"""The roofline as an inline SVG: measured ceilings, kernels whose counters were read, and the whole call."""

from __future__ import annotations

import math
from html import escape

from stitchcuda.hardware.model import Ceilings
from stitchcuda.profiling.metrics import Facts
from stitchcuda.profiling.model import KernelCounters, Profile
from stitchcuda.profiling.roofline import point
from stitchcuda.profiling.rules import Work
from stitchcuda.profiling.table import short_name
from stitchcuda.task.model import Precision

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 80, 20, 16, 50
LINE = 13
"""Pixels between two labels, so that both can be read."""
COLOURS = ("#3b6fb6", "#c8553d", "#2a9d8f", "#e9a23b", "#7a5195", "#7d8597")


def roofline_svg(profile: Profile, ceilings: Ceilings | None, work: Work | None, precision: Precision) -> str:
    """FLOP/s over FLOP per byte, both logarithmic; '' where no ceiling was measured."""
    if ceilings is None or ceilings.copy_bytes_per_second <= 0:
        return ""
    rates = {name: rate for name, rate in ceilings.flops_per_second.items() if rate > 0}
    points = _points(profile.counters, ceilings, precision)
    wall = profile.timeline.wall_seconds
    if work is not None and work.flops > 0 and work.bytes > 0 and wall > 0:
        points.append(("the whole call", work.flops / work.bytes, work.flops / wall))
    points = [p for p in points if p[1] > 0 and p[2] > 0]
    if not rates:
        return ""
    top = max([*rates.values(), *(p[2] for p in points)])
    bandwidth = ceilings.copy_bytes_per_second
    ridges = [rate / bandwidth for rate in rates.values()]
    low_x = min([min(ridges) / 100, *(p[1] for p in points)])
    high_x = max([max(ridges) * 10, *(p[1] for p in points)])
    low_y = min([low_x * bandwidth, *(p[2] for p in points)])
    chart = _Chart(_down(low_x), _up(high_x), _down(low_y), _up(top))
    parts = [
        f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="roofline"'
        ' xmlns="http://www.w3.org/2000/svg">',
        *chart.axes(),
    ]
    best = max(rates.values())
    parts.append(chart.line(chart.low_x, chart.low_x * bandwidth, best / bandwidth, best, "roof"))
    middle = math.sqrt(chart.low_x * min(ridges))
    parts.append(chart.label(middle, middle * bandwidth, _bandwidth(bandwidth), dy=-8, anchor="end"))
    for rate in rates.values():
        parts.append(chart.line(rate / bandwidth, rate, chart.high_x, rate, "roof"))
    for group in _near(rates, chart):
        told = ", ".join(f"{name} {_rate(rates[name])}" for name in group)
        parts.append(chart.label(chart.high_x, rates[group[0]], told, dy=-4, anchor="end"))
    lines: list[float] = []
    for number, (name, intensity, rate) in enumerate(points):
        line = chart.y(rate)
        while any(abs(line - other) < LINE for other in lines):
            line += LINE
        lines.append(line)
        parts.append(chart.dot(intensity, rate, COLOURS[number % len(COLOURS)], name, line))
    parts.append("</svg>")
    return "\n".join(parts)


def _points(counters: list[KernelCounters], ceilings: Ceilings, precision: Precision) -> list[tuple[str, float, float]]:
    found = []
    for one in counters:
        place = point(Facts(one), ceilings, precision)
        if place is not None:
            found.append((short_name(one.name), place.flops_per_byte, place.flops_per_second))
    return found


def _near(rates: dict[str, float], chart: _Chart) -> list[list[str]]:
    """Names of roofs, the highest first, those together whose labels would lie upon each other."""
    groups: list[list[str]] = []
    for name in sorted(rates, key=lambda name: -rates[name]):
        if groups and chart.y(rates[name]) - chart.y(rates[groups[-1][0]]) < LINE:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _rate(rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e11 else f"{rate / 1e9:.3g} GFLOP/s"


def _bandwidth(bandwidth: float) -> str:
    return f"{bandwidth / 1e12:.3g} TB/s" if bandwidth >= 1e12 else f"{bandwidth / 1e9:.3g} GB/s"


def _down(value: float) -> float:
    return float(10 ** math.floor(math.log10(value)))


def _up(value: float) -> float:
    return float(10 ** math.ceil(math.log10(value * 1.05)))


class _Chart:
    """Logarithmic axes."""

    def __init__(self, low_x: float, high_x: float, low_y: float, high_y: float) -> None:
        self.low_x, self.high_x, self.low_y, self.high_y = low_x, high_x, low_y, high_y

    def x(self, value: float) -> float:
        share = math.log10(value / self.low_x) / math.log10(self.high_x / self.low_x)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = math.log10(value / self.low_y) / math.log10(self.high_y / self.low_y)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        parts = []
        for value in _powers(self.low_x, self.high_x):
            at = self.x(value)
            parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
            parts.append(
                f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
            )
        for value in _powers(self.low_y, self.high_y):
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
            told = (
                f"{value / 1e12:g} T"
                if value >= 1e12
                else f"{value / 1e9:g} G"
                if value >= 1e9
                else f"{value / 1e6:g} M"
            )
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{told}</text>')
        parts.append(
            f'<text class="row" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
            "FLOP per byte of device memory</text>"
        )
        parts.append(
            f'<text class="row" transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">FLOP/s</text>'
        )
        return parts

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
        return (
            f'<line class="{kind}" x1="{self.x(x1):.1f}" y1="{self.y(y1):.1f}" x2="{self.x(x2):.1f}"'
            f' y2="{self.y(y2):.1f}"/>'
        )

    def label(self, x: float, y: float, text: str, *, dy: float, anchor: str) -> str:
        return (
            f'<text class="row" x="{self.x(x) - 2:.1f}" y="{self.y(y) + dy:.1f}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def dot(self, x: float, y: float, colour: str, name: str, line: float) -> str:
        told = f"{name}: {x:.3g} FLOP/byte, {_rate(y)}"
        left = self.x(x) > WIDTH * 0.6
        shown = name if len(name) <= 40 else name[:39] + "…"
        anchor, shift = ("end", -9) if left else ("start", 9)
        return (
            f"<g><title>{escape(told)}</title>"
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="5.5" fill="{colour}"/>'
            f'<text class="row" x="{self.x(x) + shift:.1f}" y="{line + 4:.1f}" text-anchor="{anchor}">'
            f"{escape(shown)}</text></g>"
        )


def _powers(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max((last - first) // 8, 1)
    return [10.0**power for power in range(first, last + 1, step)]
