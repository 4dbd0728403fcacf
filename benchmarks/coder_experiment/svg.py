"""Figures as SVG text: a canvas that shapes are put on, and panels that map numbers to places on it. What is drawn is
none of its business (see ``figures``). Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

INK, FAINT, GRID = "#1d2129", "#59616e", "#e2e5ea"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
MINUS = "\N{MINUS SIGN}"


class Canvas:
    """Shapes in the order in which they were put there, on white: pages around it may be light or dark."""

    def __init__(self, width: float, height: float, about: str) -> None:
        """Size in pixels; ``about`` is what is said to those who do not see it."""
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
            f'width="{number(width)}" height="{number(height)}" role="img" font-family="{FONT}" font-size="12">',
            f"<title>{escape(about)}</title>",
            f'<rect width="{number(width)}" height="{number(height)}" fill="#ffffff"/>',
        ]

    def add(self, tag: str, about: str = "", text: str = "", **attributes: str | float) -> None:
        """A shape. ``about`` is shown by the browser when pointed at; ``kind`` becomes the class."""
        said = " ".join(
            f'{"class" if name == "kind" else name.replace("_", "-")}="{_value(value)}"'
            for name, value in attributes.items()
        )
        inside = (f"<title>{escape(about)}</title>" if about else "") + escape(text)
        self.parts.append(f"<{tag} {said}>{inside}</{tag}>" if inside else f"<{tag} {said}/>")

    def text(self, x: float, y: float, text: str, anchor: str = "start", **attributes: str | float) -> None:
        """A line of text, its baseline at ``y``."""
        self.add("text", text=text, **({"x": x, "y": y, "text_anchor": anchor, "fill": INK} | attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = GRID, **attributes: str | float) -> None:
        """From one place to another."""
        self.add("line", **({"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": stroke} | attributes))

    def svg(self) -> str:
        """The file."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Panel:
    """A rectangle of the canvas, in pixels, and the numbers at its edges."""

    left: float
    top: float
    width: float
    height: float
    xs: tuple[float, float]
    ys: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        """Where a number is from left to right."""
        return self.left + self.width * (value - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        """Where a number is; upwards."""
        return self.top + self.height * (1 - (value - self.ys[0]) / (self.ys[1] - self.ys[0]))

    def x_axis(self, canvas: Canvas, label: str = "", most: int = 6) -> None:
        """Grid lines with numbers below them."""
        bottom = self.top + self.height
        for value in ticks(*self.xs, most):
            canvas.line(self.x(value), self.top, self.x(value), bottom)
            canvas.text(self.x(value), bottom + 15, plain(value), "middle", fill=FAINT, font_size=11)
        if label:
            canvas.text(self.left + self.width / 2, bottom + 31, label, "middle", fill=FAINT, font_size=11)

    def y_axis(self, canvas: Canvas, *, numbers: bool = True, most: int = 8) -> None:
        """Grid lines with numbers left of them."""
        for value in ticks(*self.ys, most):
            canvas.line(self.left, self.y(value), self.left + self.width, self.y(value))
            if numbers:
                canvas.text(self.left - 6, self.y(value) + 4, plain(value), "end", fill=FAINT, font_size=11)

    def path(
        self, canvas: Canvas, points: Sequence[tuple[float, float]], about: str, **attributes: str | float
    ) -> None:
        """Points joined; one alone is a dot."""
        if len(points) == 1:
            paint = {"fill": attributes.get("stroke", INK), "fill_opacity": attributes.get("stroke_opacity", 1)}
            place = {"cx": self.x(points[0][0]), "cy": self.y(points[0][1]), "r": 2.5}
            canvas.add("circle", about, **({"kind": attributes.get("kind", "")} | place | paint))
            return
        joined = " ".join(f"{number(self.x(x))},{number(self.y(y))}" for x, y in points)
        canvas.add("polyline", about, **({"points": joined, "fill": "none", "stroke_linejoin": "round"} | attributes))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two, at most so many."""
    raw = max(high - low, 1e-12) / max(most - 1, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, last + 1)]


def ceiling(values: Sequence[float], least: float) -> float:
    """The upper end of an axis from 0 on that shows all of them, a little room left."""
    return max([least, *(1.06 * value for value in values)])


def number(value: float) -> str:
    """Two decimals at most, for places in a file."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)


def plain(value: float) -> str:
    """As it stands at an axis."""
    return f"{value:g}".replace("-", MINUS)
