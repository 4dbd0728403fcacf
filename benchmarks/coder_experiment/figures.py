"""Results as figures: training curves, the held-out test, and what a step takes. Drawn from the report of ``analyse``
alone; what is not in it is not drawn, and a figure with nothing in it is not made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from coder_experiment.svg import FAINT, INK, Canvas, Panel, ceiling

COLOURS = {
    "base": "#8a8f98",
    "sft": "#3b4048",
    "sft_longer": "#56b4e9",
    "rubric": "#0072b2",
    "rule": "#d55e00",
    "scratch_only": "#009e73",
    "improve_only": "#cc79a7",
    "rejection": "#b58900",
    "shuffled": "#5c5470",
}
"""Models in the order in which they are shown, in colours that are told apart without seeing red and green apart
(Okabe and Ito, two of them darkened)."""
PHASES = {"generate": "#004488", "evaluate": "#ddaa33", "update": "#bb5566"}
COLUMNS = (
    ("both skills", ("rubric", "rule")),
    ("one skill", ("scratch_only", "improve_only")),
    ("controls", ("rejection", "shuffled")),
)
"""Arms whose curves share a panel."""
MEASURES = {
    "correct": "correct answers, share",
    "reward": "mean reward, by rule and rubric",
    "rule_reward": "mean reward, by the rule",
    "hack": "hacks, share of all answers",
    "partial_hack": "partial hacks, share of correct ones",
}
SMOOTHED = 5
"""Steps of which the thick line is the mean."""
WIDTH, ROW = 960, 26


def figures(report: dict[str, Any]) -> dict[str, str]:
    """What each figure shows, and its SVG: those for which there is something to show."""
    made = {name: draw(report) for name, draw in FIGURES.items()}
    return {name: text for name, text in made.items() if text}


def arm_of(run: str) -> str:
    """``rubric`` of ``rubric-1``."""
    return re.sub(r"-\d+$", "", run)


def in_order(names: Sequence[str]) -> list[str]:
    """Models or runs as they are shown: before training, supervised, then the arms and their seeds."""
    known = list(COLOURS)
    return sorted(names, key=lambda n: (known.index(arm_of(n)) if arm_of(n) in known else len(known), n))


def stepped(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Runs that answered and were rewarded in each step, and their steps: neither the cold start nor ``sft_longer``."""
    found = {name: [r for r in records if "reward" in r] for name, records in report["curves"].items()}
    return {name: found[name] for name in in_order(list(found)) if found[name]}


def smooth(values: Sequence[float], window: int = SMOOTHED) -> list[float]:
    """The mean of each and those around it; of fewer at the ends."""
    half = window // 2
    parts = [values[max(0, at - half) : at + half + 1] for at in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def phases(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean seconds of each phase of a step, by arm, over the steps of all its seeds."""
    by_arm: dict[str, list[dict[str, float]]] = {}
    for run, records in stepped(report).items():
        by_arm.setdefault(arm_of(run), []).extend(r["seconds"] for r in records if r.get("seconds"))
    return {
        arm: {phase: sum(t.get(phase, 0.0) for t in timed) / len(timed) for phase in PHASES}
        for arm, timed in by_arm.items()
        if timed
    }


def curves(report: dict[str, Any]) -> str:
    """Mean reward and share of correct answers in each step of training; empty where no arm has begun."""
    runs = stepped(report)
    known = [arm for _, arms in COLUMNS for arm in arms]
    others = tuple(dict.fromkeys(arm_of(run) for run in runs if arm_of(run) not in known))
    columns = [
        (title, [run for run in runs if arm_of(run) in arms])
        for title, arms in (*COLUMNS, ("others", others))
        if any(arm_of(run) in arms for run in runs)
    ]
    if not columns:
        return ""
    left, gap, top, tall, between = 56, 22, 84, 180, 26
    wide = min(440.0, (WIDTH - left - 14 - gap * (len(columns) - 1)) / len(columns))
    width = left + 14 + wide * len(columns) + gap * (len(columns) - 1)
    canvas = Canvas(width, top + 2 * tall + between + 40, "Mean reward and correct answers in each step of training")
    last = max([r["step"] + 1 for records in runs.values() for r in records] + [_steps(report), 2])
    rewards = [r["reward"] for records in runs.values() for r in records]
    rows = (("reward", "mean reward", ceiling(rewards, 0.1)), ("correct", "share of correct answers", 1.0))
    for at, (measure, label, high) in enumerate(rows):
        y = top + at * (tall + between)
        canvas.text(
            14, y + tall / 2, label, "middle", fill=FAINT, transform=f"rotate(-90 14 {y + tall / 2:.0f})", font_size=12
        )
        for column, (title, shown) in enumerate(columns):
            x = left + column * (wide + gap)
            panel = Panel(x, y, wide, tall, (0, last), (0, high))
            panel.x_axis(canvas, "step" if at else "")
            panel.y_axis(canvas, numbers=column == 0)
            if not at:
                _legend(canvas, x, title, shown)
            for run in shown:
                _curve(canvas, panel, run, measure, runs[run])
    return canvas.svg()


def _steps(report: dict[str, Any]) -> int:
    return int(report["config"].get("budget", {}).get("steps", 0))


def _dashes(run: str) -> str:
    """Seeds of an arm have its colour and are told apart by their lines."""
    seed = re.search(r"-(\d+)$", run)
    return {"2": "6 3", "3": "2 3"}.get(seed[1] if seed else "", "none")


def _legend(canvas: Canvas, x: float, title: str, runs: Sequence[str]) -> None:
    canvas.text(x, 20, title, font_weight="600")
    for row, arm in enumerate(dict.fromkeys(arm_of(run) for run in runs)):
        y, at, colour = 42.0 + 18 * row, x + 90, COLOURS.get(arm, INK)
        canvas.text(x, y, arm)
        seeds = [run for run in runs if arm_of(run) == arm]
        for run in seeds:
            canvas.line(at, y - 4, at + 22, y - 4, colour, stroke_width=2.2, stroke_dasharray=_dashes(run))
            canvas.text(at + 26, y, f"seed {run.rsplit('-', 1)[-1]}", fill=FAINT, font_size=11)
            at += 76 if len(seeds) < 3 else 64


def _curve(canvas: Canvas, panel: Panel, run: str, measure: str, records: Sequence[dict[str, Any]]) -> None:
    """Each step thin, their running mean over it."""
    steps, values = [r["step"] + 1 for r in records], [float(r[measure]) for r in records]
    colour, smoothed = COLOURS.get(arm_of(run), INK), smooth(values)
    raw: dict[str, Any] = {"stroke": colour, "stroke_width": 1, "stroke_opacity": 0.35}
    thick: dict[str, Any] = {"stroke": colour, "stroke_width": 2.2, "stroke_dasharray": _dashes(run)}
    panel.path(canvas, list(zip(steps, values, strict=True)), "", kind=f"raw {measure} {run}", **raw)
    about = f"{run}, {measure}: {smoothed[0]:.3f} at first, {smoothed[-1]:.3f} at last (means of steps)"
    panel.path(canvas, list(zip(steps, smoothed, strict=True)), about, kind=f"smooth {measure} {run}", **thick)


def test(report: dict[str, Any]) -> str:
    """What every model answers to the held-out requests: means, 95 % intervals, and each seed's own mean."""
    models = in_order(list(report["arms"]))
    if not models:
        return ""
    left, gap, top, across = 108, 20, 40, 3
    wide = (WIDTH - left - 10 - gap * (across - 1)) / across
    tall = ROW * len(models) + 6
    step = tall + 68
    canvas = Canvas(WIDTH, top + 2 * step - 20, "The held-out test: rates and rewards of every model, 95 % intervals")
    for at, (measure, title) in enumerate(MEASURES.items()):
        x, y = left + (at % across) * (wide + gap), top + (at // across) * step
        shown = {arm: report["arms"][arm][measure] for arm in models}
        ends = [v for r in shown.values() for v in (r["value"], *r["interval"] * _steady(r)) if _known(v)]
        panel = Panel(x, y, wide - 48, tall, (0, ceiling(ends, 0.1)))
        canvas.text(x, y - 10, title, font_weight="600")
        panel.x_axis(canvas, most=5)
        for row, (arm, record) in enumerate(shown.items()):
            middle = y + 3 + ROW * (row + 0.5)
            if at % across == 0:
                canvas.text(left - 10, middle + 4, arm, "end")
            _estimate(canvas, panel, middle, arm, measure, record, report["models"])
    _key(canvas, left + 2 * (wide + gap), top + step)
    return canvas.svg()


def _estimate(
    canvas: Canvas, panel: Panel, y: float, arm: str, measure: str, record: dict[str, Any], runs: dict[str, Any]
) -> None:
    """A model's row in a panel, its number at the end."""
    value, end = record["value"], panel.left + panel.width + 44
    if not _known(value):
        canvas.text(end, y + 4, "none", "end", fill=FAINT, font_size=11)
        return
    colour, (low, high) = COLOURS.get(arm, INK), record["interval"]
    if _known(low) and _known(high):
        end_of_line = panel.x(min(high, panel.xs[1]))
        canvas.line(panel.x(low), y, end_of_line, y, colour, stroke_width=2.4, kind=f"interval {measure} {arm}")
    seeds = [runs[run][measure] for run in in_order(list(runs)) if arm_of(run) == arm and run != arm]
    for own in (own for own in seeds if len(seeds) > 1 and _known(own)):
        place = {"cx": panel.x(own), "cy": y + 8, "r": 2.8, "fill": "#ffffff", "stroke": colour, "stroke_width": 1.4}
        canvas.add("circle", f"{arm}, one seed: {own:.3f}", kind=f"seed {measure} {arm}", **place)
    about = f"{arm}: {value:.3f} ({low:.3f} to {high:.3f})"
    canvas.add("circle", about, kind=f"mean {measure} {arm}", cx=panel.x(value), cy=y, r=4.2, fill=colour)
    canvas.text(end, y + 4, f"{value:.3f}", "end", font_size=11)


def _key(canvas: Canvas, x: float, y: float) -> None:
    """How the panels are read, in the place where no panel is."""
    canvas.text(x, y - 10, "how to read it", font_weight="600")
    canvas.add("circle", cx=x + 20, cy=y + 14, r=4.2, fill=INK)
    canvas.text(x + 48, y + 18, "mean over all seeds")
    canvas.line(x + 4, y + 40, x + 36, y + 40, INK, stroke_width=2.4)
    canvas.text(x + 48, y + 44, "95 % interval, by bootstrap")
    canvas.text(x + 48, y + 60, "cut where it leaves the panel", fill=FAINT, font_size=11)
    canvas.add("circle", cx=x + 20, cy=y + 82, r=2.8, fill="#ffffff", stroke=INK, stroke_width=1.4)
    canvas.text(x + 48, y + 86, "one seed, where there are several")


def _steady(record: dict[str, Any]) -> bool:
    """Whether an interval is short enough to say how wide a panel is: of few answers it may be all there is."""
    low, high = record["interval"]
    return _known(low) and _known(high) and high - low < 0.8


def seconds(report: dict[str, Any]) -> str:
    """Mean seconds of a step by phase, a bar for each arm; empty where no step was timed."""
    shown = phases(report)
    if not shown:
        return ""
    left, top = 110, 44
    tall = (ROW + 2) * len(shown) + 6
    totals = [sum(times.values()) for times in shown.values()]
    canvas = Canvas(WIDTH - 200, top + tall + 42, "Mean seconds of a training step by phase")
    panel = Panel(left, top, WIDTH - 200 - left - 70, tall, (0, ceiling(totals, 1e-3)))
    panel.x_axis(canvas, "seconds a step, mean", most=9)
    for at, (phase, colour) in enumerate(PHASES.items()):
        canvas.add("rect", x=left + at * 100, y=12, width=14, height=14, fill=colour)
        canvas.text(left + at * 100 + 20, 24, phase)
    if "rejection" in shown:
        canvas.text(left + 320, 24, "rejection: updates of a round, over its steps", fill=FAINT, font_size=11)
    for row, (arm, times) in enumerate(shown.items()):
        y, begin = top + 5 + (ROW + 2) * row, 0.0
        canvas.text(left - 10, y + 16, arm, "end")
        for phase, colour in PHASES.items():
            place = {"x": panel.x(begin), "y": y, "width": panel.x(begin + times[phase]) - panel.x(begin)}
            about = f"{arm}, {phase}: {times[phase]:.3f} s"
            canvas.add("rect", about, kind=f"bar {phase} {arm}", **place, height=ROW - 4, fill=colour)
            begin += times[phase]
        end = panel.x(begin) + 7
        canvas.text(end, y + 16, f"{begin:.2f} s", stroke="#ffffff", stroke_width=4, paint_order="stroke")
    return canvas.svg()


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


FIGURES = {"curves": curves, "test": test, "seconds": seconds}
"""What each figure is called in file names, and what draws it."""
