"""Results as Markdown for readers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np


def page(report: dict[str, Any]) -> str:
    """The report of ``analyse`` as a page."""
    slices = [record for record in report["slices"] if "seconds" in record]
    cut = sum("begun" in record for record in report["slices"]) - len(slices)
    machine = slices[-1] if slices else {}
    text = [
        "# The small training experiment: results",
        "",
        "Hypotheses, statistics and budgets were fixed beforehand: "
        "`benchmarks/coder_experiment/PREREGISTRATION.md`. Written by `run.py analyse`.",
        "",
        f"{machine.get('date', '?')}, {machine.get('gpu') or machine.get('cpu', '?')}, "
        f"torch {machine.get('torch', '?')}, "
        f"commit {machine.get('commit', '?')}; {len(slices)} slices (and {cut} that were killed), "
        f"{sum(s['seconds'] for s in slices) / 60:.1f} min in all. "
        f"{report['compositions']} test compositions.",
        "",
        "## Hypotheses",
        "| | statistic (above 0 supports) | 95 % | p | p (Holm) | by seed | confirmed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("H1", "H2", "H3", "H4", "H5"):
        h = report["hypotheses"].get(name)
        if h is None:
            text.append(f"| {name} | not run | | | | | no |")
            continue
        seeds = ", ".join(f"{v:+.3f}" for v in h["by_seed"])
        text.append(
            f"| {name} | {h['statistic']:+.3f} | {h['interval'][0]:+.3f} to {h['interval'][1]:+.3f} | {h['p']:.4f} "
            f"| {h['p_holm']:.4f} | {seeds} | {'yes' if h['confirmed'] else 'no'} |"
        )
    text += [
        "",
        "## Mean reward of `rubric` less that of",
        "| model | difference | 95 % |",
        "|---|---|---|",
        *(
            f"| {name} | {r['difference']:+.3f} | {r['interval'][0]:+.3f} to {r['interval'][1]:+.3f} |"
            for name, r in report["beside"].items()
        ),
    ]
    r = report["beside"].get("sft", {})
    if np.isfinite(r.get("ratio", float("nan"))):
        text += [
            "",
            f"Over the cold start it is {r['ratio']:.2f} times ({r['ratio_interval'][0]:.2f} to "
            f"{r['ratio_interval'][1]:.2f}). Of the difference, {r['by_compiling']:+.3f} is what more answers that "
            "compile would give, worth no more each than before.",
        ]
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
    more = ["reward_scratch", "reward_improve", "compiled", "seen_cols_correct", "unseen_cols_correct"]
    more += ["lazy_on_P", "shortcut_on_P", "truncated"]
    text += ["", "| arm | " + " | ".join(more) + " | best/time, failures 0.01 |", "|---" * (len(more) + 2) + "|"]
    for arm, record in report["arms"].items():
        cells = [_cell(record[name]) for name in more] + [_cell(record["log_best_all"], power=True)]
        text.append(f"| {arm} | " + " | ".join(cells) + " |")
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
    start = report["models"].get("sft")
    if start is not None:
        apart = start["pass_8"] - start["correct"]
        enough = start["correct"] >= 0.45 and apart >= 0.1
        text += [
            "",
            f"The cold start answers {start['correct']:.0%} of the test right, and {start['pass_8']:.0%} with one of "
            "eight; 45 % (of the validation) and 10 points between them were wanted"
            f"{'' if enough else ', and not reached'}.",
        ]
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
    return re.sub(r"[+-]?\bnan\b", "none", "\n".join(text)) + "\n"


def _cell(record: dict[str, Any], *, power: bool = False) -> str:
    values = [record["value"], *record["interval"]]
    if power:
        values = [float(np.exp(v)) for v in values]
    return f"{values[0]:.3f} ({values[1]:.3f}, {values[2]:.3f})"
