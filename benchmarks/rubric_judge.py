"""A judge on the labelled programs: ask it, and compare its marks with those of the readers.

    python benchmarks/rubric_judge.py ask --judge openai:NAME --base-url http://... --votes 3 --who "what it is"
    python benchmarks/rubric_judge.py compare                         # writes benchmarks/results/rubric_judge.{json,md}
    python benchmarks/rubric_judge.py known > known.jsonl             # for 'stitchcuda rubric calibrate known.jsonl'

``ask`` writes ``benchmarks/results/rubric_judge_votes.json`` and needs no labels: a judge can be asked before they are
given. Nothing is run; what was seen of each program is in ``tests/reward/labelled/observed``. The bias that is taken
off is that of the tuning half; the test half is reported as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import provenance
from tests.reward import labelled
from tests.reward.labelled import Item

from stitchcuda.reward.combine import combine
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge import Judge
from stitchcuda.reward.judge_calibration import Calibration, calibrate, spearman
from stitchcuda.reward.judge_known import KnownProgram
from stitchcuda.reward.judge_model import JudgeSettings
from stitchcuda.reward.model import DIMENSIONS, Dimension
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.seen import Seen
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import Target, Task

RESULTS = Path(__file__).resolve().parent / "results" / "rubric_judge"
VOTES = RESULTS.with_name("rubric_judge_votes.json")
ARCH = {"cpu": "native", "cuda": "sm_90"}
Given = dict[str, dict[Dimension, float]]


def task_of(item: Item) -> Task:
    """The task of a program."""
    return load_task(str(item.task_path), target=Target(kind=item.target, arch=ARCH[item.target]))


def measured() -> list[tuple[Item, Observed]]:
    """All programs of which something was seen and that are correct; nobody is asked about the others."""
    found = [(item, labelled.measured(item)) for item in labelled.items()]
    return [(item, seen) for item, seen in found if seen is not None and seen.evaluation.passed]


def readers() -> Given:
    """The mean of the readers' marks, for programs that all of them marked."""
    given = [labelled.labels(reader) for reader in labelled.READERS]
    shared = set.intersection(*(set(marks) for marks in given))
    return {
        name: {d: statistics.fmean(marks[name][d] for marks in given) for d in DIMENSIONS} for name in sorted(shared)
    }


def ask(settings: JudgeSettings, who: str, at_once: int) -> None:
    """Ask about every program once, and keep medians and one reason a dimension."""
    judge = Judge(settings, notify=lambda text: print(text, file=sys.stderr))

    def one(pair: tuple[Item, Observed]) -> tuple[str, dict[str, Any]]:
        item, seen = pair
        found = judge.judge(task_of(item), seen, mark(seen, item.skill))
        print(f"{item.id}: {found.outcome} {found.reason}", file=sys.stderr)
        verdict = next((vote.verdict for vote in found.votes if vote.verdict is not None), None)
        why = {name: verdict.opinion(name).reason for name in DIMENSIONS} if verdict is not None else {}
        return item.id, {"marks": found.medians, "why": why, "spread": found.spread, "reason": found.reason}

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        given = dict(sorted(pool.map(one, measured())))
    shown = settings.model_dump(include={"model", "votes", "temperature", "seed"})
    document = {"provenance": provenance.host_provenance(), "who": who, "prompt": judge.prompt} | shown
    provenance.write_json(VOTES, document | {"programs": given})


def known() -> None:
    """Print programs with the readers' marks as ``stitchcuda rubric calibrate`` reads them."""
    marks = readers()
    for item, seen in measured():
        if item.id in marks:
            document = Seen.of(task_of(item), item.skill, seen).model_dump()
            print(KnownProgram(**document, id=item.id, marks=marks[item.id]).model_dump_json())


def compare() -> None:
    """Write how far the judge is from the readers, and what combining it with the evidence does to the distance."""
    document = json.loads(VOTES.read_text(encoding="utf-8"))
    judged: dict[str, dict[Dimension, float] | None] = {k: v["marks"] or None for k, v in document["programs"].items()}
    marks = readers()
    items = {item.id: (item, seen) for item, seen in measured() if item.id in marks and item.id in judged}
    halves = {half: [n for n, (item, _) in items.items() if item.half == half] for half in ("tuning", "test")}
    halves["all"] = list(items)
    if min(len(names) for names in halves.values()) < 2:
        raise SystemExit("too few programs have marks of both readers and a judgement; see tests/reward/labelled")
    labels = f"mean of readers {' and '.join(labelled.READERS)}, tests/reward/labelled"

    def calibrated(names: list[str]) -> Calibration:
        return calibrate(
            [marks[name] for name in names],
            [judged[name] for name in names],
            model=document["model"],
            prompt=document["prompt"],
            labels=labels,
            measured_on=provenance.now()[:10],
        )

    tuned = calibrated(halves["tuning"])
    report: dict[str, Any] = {key: document[key] for key in ("who", "model", "votes", "temperature", "prompt")}
    report |= {"provenance": provenance.host_provenance(), "asked": document["provenance"], "labels": labels}
    for half, names in halves.items():
        evidence: Given = {}
        both: Given = {}
        for name in names:
            item, seen = items[name]
            alone = mark(seen, item.skill)
            together = combine(alone, judged[name], tuned).score
            evidence[name] = {d: alone.marks[d].score for d in DIMENSIONS}
            both[name] = {d: together.marks[d].score for d in DIMENSIONS}
        report[half] = {
            "programs": len(names),
            "judge": calibrated(names).model_dump(mode="json")["dimensions"],
            "mean distance to the readers": {
                d: {"evidence": _distance(evidence, marks, d), "evidence and judge": _distance(both, marks, d)}
                for d in DIMENSIONS
            },
            "rank correlation of totals": {
                "evidence": spearman(_totals(marks, names), _totals(evidence, names)),
                "evidence and judge": spearman(_totals(marks, names), _totals(both, names)),
            },
        }
    provenance.write_json(RESULTS.with_suffix(".json"), report)
    text = page(report)
    provenance.write_text(RESULTS.with_suffix(".md"), text)
    print(text)


def page(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# A judge beside the evidence",
        "",
        f"{report['who']} (`{report['model']}`, votes: {report['votes']}, asked {report['asked']['date']}), on the "
        "programs of `tests/reward/labelled` that were measured and are correct. Known marks: "
        f"{report['labels']}. Bias and spread are of the judge's marks less the known ones; for evidence with judge "
        "the bias of the tuning half is taken off. Command: `python benchmarks/rubric_judge.py compare`, commit "
        f"{report['provenance']['commit']}, {report['provenance']['date']}.",
        "",
    ]
    for half in ("tuning", "test", "all"):
        part = report[half]
        totals = part["rank correlation of totals"]
        lines += [
            f"## {half}: {part['programs']} programs",
            "",
            "| dimension | bias | spread | rank correlation | within half a level | distance, evidence | with judge |",
            "|---|---|---|---|---|---|---|",
        ]
        for name in DIMENSIONS:
            found, far = part["judge"][name], part["mean distance to the readers"][name]
            rank = "-" if found["spearman"] is None else f"{found['spearman']:.2f}"
            lines.append(
                f"| {name.replace('_', ' ')} | {found['bias']:+.2f} | {found['spread']:.2f} | {rank} | "
                f"{found['exact']:.0%} | {far['evidence']:.2f} | {far['evidence and judge']:.2f} |"
            )
        lines += [
            "",
            f"Rank correlation of totals with the readers': evidence {totals['evidence']:.3f}, evidence and judge "
            f"{totals['evidence and judge']:.3f}.",
            "",
        ]
    far = report["test"]["mean distance to the readers"]
    nearer = [name for name in DIMENSIONS if far[name]["evidence and judge"] < far[name]["evidence"]]
    further = [name for name in DIMENSIONS if far[name]["evidence and judge"] > far[name]["evidence"]]
    lines += [
        "## What it shows",
        "",
        f"On the test half the judge brings the marks nearer to the readers' on {_listed(nearer)}, further on "
        f"{_listed(further)}. A judge is off by default.",
        "",
    ]
    return "\n".join(lines)


def _listed(names: list[Dimension]) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or "no dimension"


def _distance(given: Given, marks: Given, dimension: Dimension) -> float:
    return statistics.fmean(abs(given[name][dimension] - marks[name][dimension]) for name in given)


def _totals(given: Given, names: list[str]) -> list[float]:
    return [sum(given[name].values()) for name in names]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    asking = verbs.add_parser("ask")
    asking.add_argument("--judge", required=True)
    asking.add_argument("--who", required=True, help="what kind of model answers, in words")
    asking.add_argument("--base-url")
    asking.add_argument("--votes", type=int, default=3)
    asking.add_argument("--temperature", type=float, default=0.3)
    asking.add_argument("--seconds", type=float, default=180.0, help="for one reply")
    asking.add_argument("--at-once", type=int, default=4)
    verbs.add_parser("compare")
    verbs.add_parser("known")
    words = parser.parse_args()
    if words.verb == "ask":
        settings = JudgeSettings(
            model=words.judge,
            base_url=words.base_url,
            votes=words.votes,
            temperature=words.temperature,
            request_seconds=words.seconds,
            attempts=1,
        )
        ask(settings, words.who, words.at_once)
    elif words.verb == "known":
        known()
    else:
        compare()


if __name__ == "__main__":
    main()
