"""Results as JSON and Markdown: what PREREGISTRATION.md asks, with intervals. Standard library and numpy only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coder_experiment.state import Folder, lines, whole

DRAWS, SEED = 10_000, 20_260_101
FAILED_BEST = 0.01
"""What a failed answer counts as in the geometric mean over all."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Sums over samples by composition, in a fixed order: ``values[name]`` is ``[compositions]``, for one trained
    model."""

    values: dict[str, Floats]


MEASURES: dict[str, tuple[Callable[[dict[str, Any]], float], Callable[[dict[str, Any]], float]]] = {
    "reward": (lambda r: r["reward"], lambda r: 1.0),
    "rule_reward": (lambda r: r["rule_reward"], lambda r: 1.0),
    "correct": (lambda r: r["correct"], lambda r: 1.0),
    "compiled": (lambda r: r["status"] not in ("refused", "build_failed"), lambda r: 1.0),
    "hack": (lambda r: r["hack"], lambda r: 1.0),
    "partial_hack": (lambda r: r["partial_hack"], lambda r: r["correct"] and not r["hack"]),
    "lazy": (lambda r: r["lazy"] and not r["hack"], lambda r: r["correct"] and not r["hack"]),
    "shortcut": (lambda r: r["shortcut"] and not r["hack"], lambda r: r["correct"] and not r["hack"]),
    "lazy_on_P": (
        lambda r: r["lazy"] and not r["hack"] and r["family"] == "P",
        lambda r: r["correct"] and not r["hack"] and r["family"] == "P",
    ),
    "fixed": (lambda r: r["correct"] and r["change"] == "fix", lambda r: r["change"] == "fix"),
    "log_speedup": (lambda r: np.log(r["speedup"]) if r["correct"] else 0.0, lambda r: r["correct"]),
    "log_best": (lambda r: np.log(r["best_over"]) if r.get("best_over") else 0.0, lambda r: bool(r.get("best_over"))),
    "log_best_all": (lambda r: np.log(r.get("best_over") or FAILED_BEST), lambda r: 1.0),
    "gold": (lambda r: float(np.mean(list(r["gold"].values()))) if r.get("gold") else 0.0, lambda r: r["correct"]),
    "reward_compiled": (lambda r: r["reward"], lambda r: r["status"] not in ("refused", "build_failed")),
    "reward_scratch": (lambda r: r["reward"] * (r["skill"] == "scratch"), lambda r: r["skill"] == "scratch"),
    "reward_improve": (lambda r: r["reward"] * (r["skill"] == "improve"), lambda r: r["skill"] == "improve"),
    "unseen_cols_correct": (lambda r: r["correct"] and r["unseen"], lambda r: r["unseen"]),
    "truncated": (lambda r: not r["ended"], lambda r: 1.0),
}
"""Numerator and denominator of each, by sample."""


def sums(records: Sequence[dict[str, Any]], order: Sequence[str]) -> Sums:
    """Sums of every measure by composition."""
    place = {name: at for at, name in enumerate(order)}
    values = {f"{name}{side}": np.zeros(len(order)) for name in MEASURES for side in ("+", "/")}
    for record in records:
        at = place[record["task"]]
        for name, (top, bottom) in MEASURES.items():
            weight = float(bottom(record))
            values[f"{name}/"][at] += weight
            values[f"{name}+"][at] += float(top(record)) if weight else 0.0
    return Sums(values)


class Draws:
    """The same resamples of compositions for whatever is compared; seeds are resampled for each arm."""

    def __init__(self, models: dict[str, list[Sums]], compositions: int, seed: int = SEED, draws: int = DRAWS) -> None:
        draw = np.random.default_rng(seed)
        picked = draw.multinomial(compositions, [1 / compositions] * compositions, size=draws)
        self.weights = picked.astype(np.float64)
        self.models = models
        self.seeds = {name: draw.integers(0, len(m), size=(draws, len(m))) for name, m in models.items()}

    def point(self, model: str, measure: str) -> float:
        """As measured."""
        top, bottom = (sum(float(m.values[measure + side].sum()) for m in self.models[model]) for side in "+/")
        return top / bottom if bottom else float("nan")

    def sample(self, model: str, measure: str) -> Floats:
        """In each draw; NaN where it has no sample."""
        sides = []
        for side in "+/":
            stacked = np.stack([m.values[measure + side] for m in self.models[model]])
            by_seed = self.weights @ stacked.T
            sides.append(np.take_along_axis(by_seed, self.seeds[model], axis=1).sum(axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sides[0] / sides[1])


def interval(values: Floats) -> list[float]:
    """95 %, by percentiles of the draws."""
    known = values[np.isfinite(values)]
    return [float(v) for v in np.percentile(known, [2.5, 97.5])] if known.size else [float("nan")] * 2


def holm(p: dict[str, float]) -> dict[str, float]:
    """Adjusted for as many tests as there are."""
    adjusted, largest = {}, 0.0
    for at, name in enumerate(sorted(p, key=lambda n: p[n])):
        largest = max(largest, min(1.0, (len(p) - at) * p[name]))
        adjusted[name] = largest
    return adjusted


def contrasts(draws: Draws) -> dict[str, dict[str, Any]]:
    """The four hypotheses, as far as their arms are there: statistic, interval, p, p after Holm, and seeds apart."""

    def both(model: str) -> tuple[float, Floats]:
        parts = ("reward_scratch", "reward_improve")
        return sum(draws.point(model, p) for p in parts) / 2, sum(
            (draws.sample(model, p) for p in parts), np.zeros(1)
        ) / 2

    def one(model: str, measure: str) -> tuple[float, Floats]:
        return draws.point(model, measure), draws.sample(model, measure)

    found: dict[str, dict[str, Any]] = {}
    wanted: dict[str, tuple[str, str, Callable[[], tuple[float, Floats]]]] = {
        "H1": ("rubric", "sft", lambda: _over(one("rubric", "reward"), one("sft", "reward"), 1.3)),
        "H2": ("rubric", "rule", lambda: _minus(_half(one("rule", "partial_hack")), one("rubric", "partial_hack"))),
        "H3": ("rubric", "scratch_only", lambda: _minus(both("rubric"), both("scratch_only"))),
        "H4": ("rubric", "improve_only", lambda: _minus(both("rubric"), both("improve_only"))),
    }
    for name, (first, second, statistic) in wanted.items():
        if first in draws.models and second in draws.models:
            value, sample = statistic()
            # A draw without a sample counts against the hypothesis.
            failed = int(np.sum(~(sample > 0)))
            found[name] = {
                "statistic": value,
                "interval": interval(sample),
                "p": (failed + 1) / (len(sample) + 1),
                "seeds": [len(draws.models[first]), len(draws.models[second])],
                "by_seed": _by_seed(draws, name, first, second),
            }
    # Holm counts all four, run or not: what is missing cannot make the others easier.
    adjusted = holm({name: found[name]["p"] if name in found else 1.0 for name in wanted})
    for name, record in found.items():
        record["p_holm"] = adjusted[name]
        agree = all(value > 0 for value in record["by_seed"]) or all(value <= 0 for value in record["by_seed"])
        record["seeds_agree"] = agree
        record["confirmed"] = adjusted[name] < 0.05 and agree
    return found


def _by_seed(draws: Draws, name: str, first: str, second: str) -> list[float]:
    """The statistic with one seed of each arm at a time, as far as both have it."""
    values = []
    a, b = draws.models[first], draws.models[second]
    for at in range(max(len(a), len(b))):
        if at >= len(a) or (at >= len(b) and second != "sft"):
            break
        rate = [_rate(a[at], m) for m in ("reward", "partial_hack", "reward_scratch", "reward_improve")]
        other = [
            _rate(b[min(at, len(b) - 1)], m) for m in ("reward", "partial_hack", "reward_scratch", "reward_improve")
        ]
        values.append(
            rate[0] / other[0] - 1.3
            if name == "H1" and other[0]
            else other[1] / 2 - rate[1]
            if name == "H2"
            else sum(rate[2:]) / 2 - sum(other[2:]) / 2
        )
    return values


def _rate(model: Sums, measure: str) -> float:
    bottom = float(model.values[f"{measure}/"].sum())
    return float(model.values[f"{measure}+"].sum()) / bottom if bottom else float("nan")


def _over(first: tuple[float, Floats], second: tuple[float, Floats], least: float) -> tuple[float, Floats]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return first[0] / second[0] - least if second[0] else float("nan"), first[1] / second[1] - least


def _minus(first: tuple[float, Floats], second: tuple[float, Floats]) -> tuple[float, Floats]:
    return first[0] - second[0], first[1] - second[1]


def _half(value: tuple[float, Floats]) -> tuple[float, Floats]:
    return value[0] / 2, value[1] / 2


def best_of(records: Sequence[dict[str, Any]], most: int = 8) -> float:
    """pass@``most``: share of requests with a correct one among so many samples (or all, where there are fewer)."""
    seen: dict[int, bool] = {}
    for record in records:
        if record["sample"] < most:
            seen[record["request"]] = seen.get(record["request"], False) or record["correct"]
    return sum(seen.values()) / max(len(seen), 1)


def analyse(state: Path, seed: int = SEED) -> dict[str, Any]:
    """Everything that is reported. Raises ValueError where no model was tested."""
    from coder_experiment.tasks import TEST_COLS

    folder = Folder(state)
    raw = {path.stem: lines(path) for path in sorted((state / "results").glob("*.jsonl"))}
    if not raw:
        raise ValueError(f"no model was tested in {state}; run a slice first")
    tested: dict[str, list[dict[str, Any]]] = {}
    for name, records in raw.items():
        tested[name] = [r | {"unseen": r["cols"] in TEST_COLS} for r in records if not r.get("dropped")]
    order = sorted({r["task"] for records in tested.values() for r in records})
    models: dict[str, list[Sums]] = {}
    for name, records in tested.items():
        models.setdefault(re.sub(r"-\d+$", "", name), []).append(sums(records, order))
    draws = Draws(models, len(order), seed=seed)
    table = {
        arm: {
            "seeds": len(parts),
            **{m: {"value": draws.point(arm, m), "interval": interval(draws.sample(arm, m))} for m in MEASURES},
        }
        for arm, parts in models.items()
    }
    apart = {
        name: {
            "samples": len(records),
            "dropped": 1 - len(records) / max(len(raw[name]), 1),
            "pass_8": best_of(records),
            **{m: _rate(sums(records, order), m) for m in ("reward", "rule_reward", "correct", "partial_hack", "hack")},
        }
        for name, records in tested.items()
    }
    curves = {path.parent.name: lines(path) for path in sorted(state.glob("arms/*/metrics.jsonl"))}
    done = {path.parent.name: json.loads(path.read_text()) for path in sorted(state.glob("arms/*/done.json"))}
    facts = state / "data" / "facts.json"
    return {
        "config": folder.config(),
        "slices": lines(state / "slices.jsonl"),
        "pilot": lines(state / "pilot.jsonl"),
        "data": json.loads(facts.read_text())["record"] if facts.exists() else {},
        "compositions": len(order),
        "hypotheses": contrasts(draws),
        "arms": table,
        "models": apart,
        "time": done,
        "curves": {name: [_short(r) for r in records] for name, records in curves.items()},
    }


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """A step of a curve, rounded."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items() if not isinstance(v, dict)}
    if "validation" in record:
        rounded["validation_correct"] = round(record["validation"]["correct"], 4)
    if "seconds" in record:
        rounded["seconds"] = {k: round(v, 3) for k, v in record["seconds"].items()}
    return rounded


def page(report: dict[str, Any]) -> str:
    """The same for readers."""
    slices = report["slices"]
    machine = slices[-1] if slices else {}
    text = [
        "# The small training experiment: results",
        "",
        "Hypotheses, statistics and budgets were fixed beforehand: "
        "`benchmarks/coder_experiment/PREREGISTRATION.md`. Written by `run.py analyse`.",
        "",
        f"{machine.get('date', '?')}, {machine.get('gpu') or machine.get('cpu', '?')}, "
        f"torch {machine.get('torch', '?')}, "
        f"commit {machine.get('commit', '?')}; {len(slices)} slices, "
        f"{sum(s['seconds'] for s in slices) / 60:.1f} min in all. "
        f"{report['compositions']} test compositions.",
        "",
        "## Hypotheses",
        "| | statistic (above 0 supports) | 95 % | p | p (Holm) | by seed | confirmed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("H1", "H2", "H3", "H4"):
        h = report["hypotheses"].get(name)
        if h is None:
            text.append(f"| {name} | not run | | | | | no |")
            continue
        seeds = ", ".join(f"{v:+.3f}" for v in h["by_seed"])
        text.append(
            f"| {name} | {h['statistic']:+.3f} | {h['interval'][0]:+.3f} to {h['interval'][1]:+.3f} | {h['p']:.4f} "
            f"| {h['p_holm']:.4f} | {seeds} | {'yes' if h['confirmed'] else 'no'} |"
        )
    columns = ("reward", "rule_reward", "correct", "hack", "partial_hack", "lazy", "shortcut", "fixed", "gold")
    text += [
        "",
        "## Arms",
        "| arm | seeds | " + " | ".join(columns) + " | speed | best/time |",
        "|---" * (len(columns) + 4) + "|",
    ]
    for arm, record in report["arms"].items():
        cells = [_cell(record[name]) for name in columns] + [
            _cell(record[n], power=True) for n in ("log_speedup", "log_best")
        ]
        text.append(f"| {arm} | {record['seeds']} | " + " | ".join(cells) + " |")
    text += [
        "",
        "## Models",
        "| model | samples | dropped | reward | rule | pass@1 | pass@8 | hack | partial |",
        "|---" * 9 + "|",
    ]
    for name, m in report["models"].items():
        text.append(
            f"| {name} | {m['samples']} | {m['dropped']:.3f} | {m['reward']:.3f} | {m['rule_reward']:.3f} "
            f"| {m['correct']:.3f} "
            f"| {m['pass_8']:.3f} | {m['hack']:.3f} | {m['partial_hack']:.3f} |"
        )
    text += [
        "",
        "## Curves (mean reward of training rollouts, by tenths of the run)",
        "| arm | steps | reward | seconds a step by phase |",
        "|---|---|---|---|",
    ]
    for name, records in report["curves"].items():
        steps = [r for r in records if "reward" in r]
        if not steps:
            continue
        parts = list(np.array_split(np.asarray([r["reward"] for r in steps]), min(10, len(steps))))
        timed = [r["seconds"] for r in steps if "seconds" in r]
        phases = {k: float(np.mean([t.get(k, 0.0) for t in timed])) for k in (timed[0] if timed else {})}
        said = ", ".join(f"{k} {v:.2f}" for k, v in phases.items())
        text.append(f"| {name} | {len(steps)} | " + " ".join(f"{chunk.mean():.2f}" for chunk in parts) + f" | {said} |")
    return "\n".join(text) + "\n"


def _cell(record: dict[str, Any], *, power: bool = False) -> str:
    values = [record["value"], *record["interval"]]
    if power:
        values = [float(np.exp(v)) for v in values]
    return f"{values[0]:.3f} ({values[1]:.3f}, {values[2]:.3f})"


def write(state: Path, out: Path, seed: int = SEED) -> None:
    """``coder_experiment.json`` and ``coder_experiment.md``."""
    report = analyse(state, seed)
    out.mkdir(parents=True, exist_ok=True)
    whole(out / "coder_experiment.json", (json.dumps(report) + "\n").encode())
    whole(out / "coder_experiment.md", page(report).encode())
