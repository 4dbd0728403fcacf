"""Results as Markdown for readers. Under which conditions they came about is in ``conditions``."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from coder_experiment.conditions import conditions, heading
from coder_experiment.figures import SMOOTHED, in_order, phases, stepped

HYPOTHESES = {
    "H1": "`rubric` is worth at least 1.3 times `sft`: ratio of mean rewards, less 1.3",
    "H2": "`rubric` has at most half the partial hacks of `rule`: half the rate of `rule`, less that of `rubric`",
    "H3": "both skills beat `scratch_only`: difference of mean rewards, both skills with equal weight",
    "H4": "both skills beat `improve_only`: the same",
    "H5": "`rubric` beats `sft_longer`: difference of mean rewards",
}
MOST_DROPPED = 0.02
"""Share of samples lost to the machine above which the preregistration wants a slice run again."""
COMPILING = 0.8
"""Share of validation answers that compile at which the cold start may end, with the share of right ones."""
LOGARITHMS = ("log_speedup", "log_best", "log_best_all")
"""Kept as logarithms, shown as what they are of."""


def page(report: dict[str, Any], drawn: Container[str] = ()) -> str:
    """The report of ``analyse`` as a page. ``drawn``: figures that lie beside it."""
    text = [
        "# The small training experiment: results",
        "",
        "Hypotheses, statistics and budgets were fixed before any run: "
        "`benchmarks/coder_experiment/PREREGISTRATION.md`. Written by `run.py analyse`; curves, settings, seeds and "
        "numbers are in `coder_experiment.json` beside this page.",
        "",
        heading(report),
        "",
        *_missing(report),
        "## Hypotheses",
        *_hypotheses(report),
        "",
        "## The held-out test",
        *_figure("test", "Rates and mean rewards of every model on the test, with 95 % intervals", drawn),
        *_test(report),
        "",
        "## Single models",
        *_models(report),
        "",
        "## Training",
        *_figure("curves", "Mean reward and share of correct answers in each step of training", drawn),
        *_curves(report),
        "",
        "## Seconds a step",
        *_figure("seconds", "Mean seconds of a step by phase, for each arm", drawn),
        *_seconds(report),
        "",
        "## Wall time",
        *_wall(report),
        "",
        *conditions(report),
    ]
    said = re.sub(r"[+-]?\bnan\b", "none", "\n".join(text)) + "\n"
    return said.replace("none to none", "none")


def _figure(name: str, about: str, drawn: Container[str]) -> list[str]:
    return [f"![{about}](coder_experiment_{name}.svg)", ""] if name in drawn else []


def _missing(report: dict[str, Any]) -> list[str]:
    if not report["missing"]:
        return []
    said = "; ".join(f"`{name}` ({how})" for name, how in report["missing"].items())
    return [f"**Missing**, in the order in which it would have been run: {said}.", ""]


def _hypotheses(report: dict[str, Any]) -> list[str]:
    text = [
        *(f"- {name}: {about}" for name, about in HYPOTHESES.items()),
        "",
        "| | statistic (above 0 supports) | 95 % | p | p (Holm) | by seed | confirmed |",
        "|---" * 7 + "|",
    ]
    for name in HYPOTHESES:
        h = report["hypotheses"].get(name)
        if h is None:
            text.append(f"| {name} | not run | | | | | no |")
            continue
        seeds = ", ".join(f"{v:+.3f}" for v in h["by_seed"])
        text.append(
            f"| {name} | {h['statistic']:+.3f} | {h['interval'][0]:+.3f} to {h['interval'][1]:+.3f} "
            f"| {h['p']:.4f} | {h['p_holm']:.4f} | {seeds} | {_verdict(h)} |"
        )
    text += ["", "Confirmed: p below 0.05 after Holm over all five, with two seeds that agree in sign."]
    if report["beside"]:
        text += ["", "Mean reward of `rubric` less that of another model (no test):", ""]
        text += ["| model | difference | 95 % |", "|---|---|---|"]
        text += [
            f"| {name} | {r['difference']:+.3f} | {r['interval'][0]:+.3f} to {r['interval'][1]:+.3f} |"
            for name, r in ((name, report["beside"][name]) for name in in_order(list(report["beside"])))
        ]
    r = report["beside"].get("sft", {})
    if np.isfinite(r.get("ratio", float("nan"))):
        text += [
            "",
            f"The mean reward of `rubric` is {r['ratio']:.2f} times that of the cold start ("
            f"{r['ratio_interval'][0]:.2f} to {r['ratio_interval'][1]:.2f}; H1 in its weaker form asks for an interval "
            "above 1). If nothing had changed but the share of answers that compile, the difference to `sft` would be "
            f"{r['by_compiling']:+.3f}.",
        ]
    return text


def _verdict(h: dict[str, Any]) -> str:
    """Whether it is confirmed, and what stands against it besides its p."""
    if h["confirmed"]:
        return "yes"
    if not np.isfinite([h["statistic"], *h["by_seed"]]).all():
        return "no (undefined)"
    if len(h["by_seed"]) < 2:
        return "no (one seed)"
    return "no" if h["seeds_agree"] else "no (seeds disagree)"


def _test(report: dict[str, Any]) -> list[str]:
    arms = {arm: report["arms"][arm] for arm in in_order(list(report["arms"]))}
    text = [
        "`base` is the model before any training, `sft` after the cold start, the others after what "
        "PREREGISTRATION.md says of them. In parentheses: 95 % intervals over compositions and seeds.",
        "",
        "- reward: by rule and rubric; rule_reward: by the rule alone; a failed answer is 0 in both",
        "- correct, compiled, hack, truncated: shares of all answers",
        "- partial_hack (lazy or shortcut), lazy, shortcut: shares of the answers that are correct and no hack; "
        "_on_P of those to tasks of several kinds of operators",
        "- fixed: correct ones of the requests to fix a program; gold: mean of four checks, of correct answers",
        "- speed: over the stock kernels; best/time: best known time over the program's (geometric means over correct "
        f"answers; the last column over all, a failed one as {report['failed_best']:g})",
        "- reward_scratch, reward_improve: of one skill; seen, unseen: columns of matrices, in training",
        "",
    ]
    tables: list[dict[str, str]] = [
        {name: name for name in ("correct", "reward", "rule_reward", "hack", "partial_hack")},
        {name: name for name in ("lazy", "shortcut", "lazy_on_P", "shortcut_on_P", "fixed", "gold")}
        | {"log_speedup": "speed", "log_best": "best/time", "log_best_all": "best/time, all"},
        {name: name for name in ("reward_scratch", "reward_improve", "compiled", "truncated")}
        | {"seen_cols_correct": "correct, seen", "unseen_cols_correct": "correct, unseen"},
    ]
    for at, columns in enumerate(tables):
        text += ["| model |" + " seeds |" * (not at) + "".join(f" {title} |" for title in columns.values())]
        text += ["|---" * (1 + (not at) + len(columns)) + "|"]
        for arm, record in arms.items():
            cells = [f" {record['seeds']} |"] if not at else []
            cells += [f" {_cell(record[name], power=name in LOGARITHMS)} |" for name in columns]
            text.append(f"| {arm} |" + "".join(cells))
        text.append("")
    return text[:-1]


def _models(report: dict[str, Any]) -> list[str]:
    text = [
        "pass@k: share of requests with a correct one among k answers. Dropped: answers at which the machine failed.",
        "",
        "| model | answers | dropped | reward | rule_reward | pass@1 | pass@k | k | hack | partial_hack |",
        "|---" * 10 + "|",
    ]
    models = report["models"]
    for name in in_order(list(models)):
        m = models[name]
        text.append(
            f"| {name} | {m['samples']} | {m['dropped']:.3f} | {m['reward']:.3f} | {m['rule_reward']:.3f} "
            f"| {m['correct']:.3f} | {m['pass_8']:.3f} | {min(8, m['answers'])} | {m['hack']:.3f} "
            f"| {m['partial_hack']:.3f} |"
        )
    worse = [name for name in in_order(list(models)) if models[name]["dropped"] > MOST_DROPPED]
    if worse:
        text += ["", f"**More than {MOST_DROPPED:.0%} dropped, to be run again**: {', '.join(worse)}."]
    return text + _cold_start(report)


def _cold_start(report: dict[str, Any]) -> list[str]:
    """Whether it ended as the preregistration wanted it to: by validation, with room for RL."""
    start, looks = report["models"].get("sft"), report["curves"].get("sft", [])
    seen = [r for r in looks if "validation_correct" in r]
    if start is None:
        return []
    apart = start["pass_8"] - start["correct"]
    told, wanted = "The cold start", report["config"].get("cold_start", {}).get("stop_at", 0.45)
    if seen:
        correct, compiled = seen[-1]["validation_correct"], seen[-1]["validation_compiled"]
        reached = correct >= wanted and compiled >= COMPILING
        of = report["time"].get("sft", {}).get("of")
        told += (
            f" ended after {seen[-1]['step'] + 1}{f' of {of}' if of else ''} steps, with {correct:.1%} of the answers "
            f"to validation tasks right and {compiled:.1%} compiling; {wanted:.0%} and {COMPILING:.0%} were wanted"
            f"{'' if reached else ' and **not reached**'}. On the test it"
        )
    told += (
        f" answers {start['correct']:.1%} right, and {start['pass_8']:.1%} of the requests with one of "
        f"{min(8, start['answers'])} answers; 10 points between them were wanted"
        f"{'' if apart >= 0.1 else ' and **not reached**'}."
    )
    return ["", told]


def _curves(report: dict[str, Any]) -> list[str]:
    shown = stepped(report)
    if not shown:
        return ["No arm has begun."]
    text = [
        f"Thin: each step; thick: the mean of {SMOOTHED} steps around it. A step's reward is the one that its arm is "
        "paid, so curves of different arms are not of one scale: `rule` is paid by the rule, the others by rule and "
        "rubric with some checks left out, and arms of one skill are asked for that skill alone. "
        "Models are compared on the test.",
        "",
        "| run | steps | mean reward, by tenths of the run | correct, first and last tenth |",
        "|---|---|---|---|",
    ]
    for name, steps in shown.items():
        reward, correct = (_tenths([r[measure] for r in steps]) for measure in ("reward", "correct"))
        cells = f"{' '.join(f'{part:.2f}' for part in reward)} | {correct[0]:.3f}, {correct[-1]:.3f}"
        text.append(f"| {name} | {len(steps)} | {cells} |")
    return text


def _tenths(values: Sequence[float]) -> list[float]:
    return [float(part.mean()) for part in np.array_split(np.asarray(values), min(10, len(values)))]


def _seconds(report: dict[str, Any]) -> list[str]:
    means = phases(report)
    if not means:
        return ["No step was timed."]
    first = next(iter(means.values()))
    text = [
        "Means over the steps of all seeds. `rejection` makes the updates of a round when it has all of its rollouts; "
        "they are shared out over its steps. What was measured once is not measured again, so an arm that ran after "
        "another had less to evaluate.",
        "",
        "| arm | " + " | ".join(first) + " | all |",
        "|---" * (len(first) + 2) + "|",
    ]
    for arm, times in means.items():
        cells = " | ".join(f"{value:.2f}" for value in times.values())
        text.append(f"| {arm} | {cells} | {sum(times.values()):.2f} |")
    return text


def _wall(report: dict[str, Any]) -> list[str]:
    """What each model took by the clock: all starts, and what a kill made it do twice."""
    if not report["wall"]:
        return ["None was recorded."]
    text = [
        "Seconds by the clock of everything that a model's training and test do, checkpoints, looks at validation and "
        "what had to be done again after a kill included; data, loading the model and packing are not. Of steps: the "
        "phases of all steps that count.",
        "",
        "| model | training | of steps | test | both | starts of training, test |",
        "|---|---|---|---|---|---|",
    ]
    for name in in_order(list(report["wall"])):
        training, test = (report["wall"][name].get(what, []) for what in ("training", "test"))
        steps = sum(sum(r.get("seconds", {}).values()) for r in report["curves"].get(name, []))
        cells = [sum(training), steps, sum(test), sum(training) + sum(test)]
        said = " | ".join(f"{cell:.0f}" if cell else "" for cell in cells)
        text.append(f"| {name} | {said} | {len(training)}, {len(test)} |")
    return text


def _cell(record: dict[str, Any], *, power: bool = False) -> str:
    values = [record["value"], *record["interval"]]
    if not np.isfinite(values[0]):
        return "none"
    if power:
        values = [float(np.exp(v)) for v in values]
    return f"{values[0]:.3f} ({values[1]:.3f}, {values[2]:.3f})"
