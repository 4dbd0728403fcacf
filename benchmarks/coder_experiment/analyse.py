"""Results: what PREREGISTRATION.md asks, with intervals. Standard library and numpy only. How they are shown is in
``page`` and ``figures``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coder_experiment.figures import FIGURES, figures
from coder_experiment.page import page
from coder_experiment.state import Folder, lines, walls, whole

DRAWS, SEED = 10_000, 20_260_101
SINGLE = ("sft", "sft_longer")
"""Trained once and held against all seeds of an arm."""
FAILED_BEST = 0.01
"""What a failed answer counts as in the geometric mean over all."""
EXPECTED = (
    *("base", "sft", "rubric-1", "rule-1", "sft_longer", "rubric-2", "rule-2", "scratch_only-1", "improve_only-1"),
    *("scratch_only-2", "improve_only-2", "rejection-1", "shuffled-1"),
)
"""Everything that is tested, in the preregistered order (``arms.arms``, which needs torch)."""

Floats = NDArray[np.float64]


class NothingTested(ValueError):
    """There is no model to report of."""


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
    "shortcut_on_P": (
        lambda r: r["shortcut"] and not r["hack"] and r["family"] == "P",
        lambda r: r["correct"] and not r["hack"] and r["family"] == "P",
    ),
    "reward_compiled": (lambda r: r["reward"], lambda r: r["status"] not in ("refused", "build_failed")),
    "reward_scratch": (lambda r: r["reward"] * (r["skill"] == "scratch"), lambda r: r["skill"] == "scratch"),
    "reward_improve": (lambda r: r["reward"] * (r["skill"] == "improve"), lambda r: r["skill"] == "improve"),
    "unseen_cols_correct": (lambda r: r["correct"] and r["unseen"], lambda r: r["unseen"]),
    "seen_cols_correct": (lambda r: r["correct"] and not r["unseen"], lambda r: not r["unseen"]),
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
    """The hypotheses, as far as their arms are there: statistic, interval, p, p after Holm, and seeds apart. One that
    has a single seed of a trained arm is not confirmed, whatever its p."""

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
        "H5": ("rubric", "sft_longer", lambda: _minus(one("rubric", "reward"), one("sft_longer", "reward"))),
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
    # Holm counts all, run or not: what is missing cannot make the others easier.
    adjusted = holm({name: found[name]["p"] if name in found else 1.0 for name in wanted})
    for name, record in found.items():
        record["p_holm"] = adjusted[name]
        agree = all(value > 0 for value in record["by_seed"]) or all(value <= 0 for value in record["by_seed"])
        record["seeds_agree"] = agree
        record["confirmed"] = adjusted[name] < 0.05 and agree and len(record["by_seed"]) > 1
    return found


def beside(draws: Draws) -> dict[str, dict[str, Any]]:
    """Mean reward of ``rubric`` less each other model's, with intervals; of its gain over ``sft``, what the rate of
    compiling answers alone would give. No tests."""
    found: dict[str, dict[str, Any]] = {}
    for other in draws.models if "rubric" in draws.models else ():
        if other != "rubric":
            value, sample = (
                draws.point("rubric", "reward") - draws.point(other, "reward"),
                draws.sample("rubric", "reward") - draws.sample(other, "reward"),
            )
            found[other] = {"difference": value, "interval": interval(sample)}
    if "sft" in found:
        value, sample = _over(
            (draws.point("rubric", "reward"), draws.sample("rubric", "reward")),
            (draws.point("sft", "reward"), draws.sample("sft", "reward")),
            0.0,
        )
        more = draws.point("rubric", "compiled") - draws.point("sft", "compiled")
        found["sft"] |= {
            "ratio": value,
            "ratio_interval": interval(sample),
            "by_compiling": more * draws.point("sft", "reward_compiled"),
        }
    return found


def _by_seed(draws: Draws, name: str, first: str, second: str) -> list[float]:
    """The statistic with one seed of each arm at a time, as far as both have it."""
    values = []
    a, b = draws.models[first], draws.models[second]
    for at in range(max(len(a), len(b))):
        if at >= len(a) or (at >= len(b) and second not in SINGLE):
            break
        rate = [_rate(a[at], m) for m in ("reward", "partial_hack", "reward_scratch", "reward_improve")]
        other = [
            _rate(b[min(at, len(b) - 1)], m) for m in ("reward", "partial_hack", "reward_scratch", "reward_improve")
        ]
        values.append(
            {
                "H1": rate[0] / other[0] - 1.3 if other[0] else float("nan"),
                "H2": other[1] / 2 - rate[1],
                "H5": rate[0] - other[0],
            }.get(name, sum(rate[2:]) / 2 - sum(other[2:]) / 2)
        )
    return values


def _rate(model: Sums, measure: str) -> float:
    bottom = float(model.values[f"{measure}/"].sum())
    return float(model.values[f"{measure}+"].sum()) / bottom if bottom else float("nan")


def _over(first: tuple[float, Floats], second: tuple[float, Floats], least: float) -> tuple[float, Floats]:
    """A ratio less ``least``; not a number where the second is nothing, which no hypothesis can win by."""
    with np.errstate(invalid="ignore", divide="ignore"):
        sample = np.where(second[1] > 0, first[1] / second[1], np.nan) - least
    return first[0] / second[0] - least if second[0] else float("nan"), np.asarray(sample)


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
    """Everything that is reported. Raises NothingTested where no model was tested."""
    from provenance import commit

    from coder_experiment.tasks import TEST_COLS

    folder = Folder(state)
    raw = {path.stem: lines(path) for path in sorted((state / "results").glob("*.jsonl"))}
    if not raw:
        raise NothingTested(f"no model was tested in {state}; run a slice first")
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
            "answers": 1 + max((r["sample"] for r in raw[name]), default=-1),
            "dropped": 1 - len(records) / max(len(raw[name]), 1),
            "pass_8": best_of(records),
            **{m: _rate(sums(records, order), m) for m in ("reward", "rule_reward", "correct", "partial_hack", "hack")},
        }
        for name, records in tested.items()
    }
    curves = {path.parent.name: lines(path) for path in sorted(state.glob("arms/*/metrics.jsonl"))}
    done = {path.parent.name: json.loads(path.read_text()) for path in sorted(state.glob("arms/*/done.json"))}
    runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(state.glob("arms/*/arm.json"))}
    facts = state / "data" / "facts.json"
    return {
        "config": folder.config(),
        "slices": lines(state / "slices.jsonl"),
        "pilot": lines(state / "pilot.jsonl"),
        "data": json.loads(facts.read_text())["record"] if facts.exists() else {},
        "bootstrap": {"draws": DRAWS, "seed": seed},
        "failed_best": FAILED_BEST,
        "analysed_at": commit(),
        "compositions": len(order),
        "hypotheses": contrasts(draws),
        "beside": beside(draws),
        "arms": table,
        "models": apart,
        "missing": {name: left(name, curves, done) for name in EXPECTED if name not in raw},
        "runs": runs,
        "time": done,
        "wall": {path.parent.name: walls(path.parent) for path in sorted(state.glob("arms/*/wall.json"))},
        "curves": {name: [_short(r) for r in records] for name, records in curves.items()},
    }


def left(name: str, curves: dict[str, list[Any]], done: Container[str]) -> str:
    """How far a model came that was not tested to the end."""
    if name in done:
        return "trained, not tested to the end"
    return f"begun, {len(curves[name])} steps" if curves.get(name) else "not begun"


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """A step of a curve, rounded."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items() if not isinstance(v, dict)}
    for skill in ("scratch", "improve"):
        for name in ("reward", "correct") if skill in record else ():
            rounded[f"{skill}_{name}"] = round(record[skill][name], 4)
    if "validation" in record:
        for name in ("correct", "compiled"):
            rounded[f"validation_{name}"] = round(record["validation"][name], 4)
    if "seconds" in record:
        rounded["seconds"] = {k: round(v, 3) for k, v in record["seconds"].items()}
    return rounded


def finite(value: Any) -> Any:
    """The same with None for what is no number, which JSON does not know."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def write(state: Path, out: Path, seed: int = SEED) -> None:
    """``coder_experiment.json``, ``coder_experiment.md`` and the figures that it shows, ``coder_experiment_*.svg``;
    those of an earlier analysis that are not drawn any more are removed."""
    report = analyse(state, seed)
    drawn = figures(report)
    out.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        file = out / f"coder_experiment_{name}.svg"
        if name in drawn:
            whole(file, drawn[name].encode())
        else:
            file.unlink(missing_ok=True)
    whole(out / "coder_experiment.json", (json.dumps(finite(report), allow_nan=False) + "\n").encode())
    whole(out / "coder_experiment.md", page(report, drawn).encode())
