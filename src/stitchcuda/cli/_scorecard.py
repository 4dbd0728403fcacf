"""How ``stitchcuda rubric`` shows marks, a judge's word, a reward and what a task asks for. Not a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stitchcuda.evaluation.model import Evaluation
    from stitchcuda.reward.judge_calibration import Calibration
    from stitchcuda.reward.judge_model import JudgeOutcome, Opinion
    from stitchcuda.reward.model import Dimension, Reward, RubricScore
    from stitchcuda.reward.task_rubric import TaskRubric


def print_json(
    evaluation: Evaluation,
    marks: RubricScore,
    gained: Reward,
    rubric: TaskRubric | None,
    judged: JudgeOutcome | None = None,
) -> None:
    """Everything as one object; ``score`` are the marks that count."""
    import json

    document = {
        "status": evaluation.status,
        "score": marks.model_dump(mode="json"),
        "total": marks.total,
        "reward": gained.model_dump(mode="json"),
        "judge": judged.model_dump(mode="json") if judged is not None else None,
        "task_rubric": rubric.model_dump(mode="json") if rubric is not None else None,
        "evaluation": evaluation.model_dump(mode="json"),
    }
    typer.echo(json.dumps(document, indent=2))


def show(
    evaluation: Evaluation,
    marks: RubricScore,
    gained: Reward,
    rubric: TaskRubric | None,
    judged: JudgeOutcome | None = None,
) -> None:
    """The scorecard on the terminal."""
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.report.terminal import new_console
    from stitchcuda.reward.model import DIMENSIONS
    from stitchcuda.reward.rubric import load

    console = new_console()
    colour = "green" if evaluation.passed else "red"
    console.print(f"[{colour} bold]{evaluation.status}[/]: {escape(evaluation.message)}", highlight=False)
    anchors = load(marks.skill)
    table = Table(box=None, padding=(0, 2, 1, 0), header_style="bold")
    table.add_column("dimension", no_wrap=True)
    table.add_column("mark", justify="right")
    if judged is not None:
        table.add_column("evidence", justify="right")
        table.add_column("judge", justify="right")
    table.add_column("reasons")
    for name in DIMENSIONS:
        given = marks.marks[name]
        reasons = [escape(reason) for reason in given.reasons]
        cells = [name.replace("_", " "), f"{given.score:g}"]
        if judged is not None:
            said = judged.medians.get(name)
            cells += [f"{judged.evidence.marks[name].score:g}", "-" if said is None else f"{said:g}"]
            if (opinion := _opinion(judged, name)) is not None:
                reasons.append(f"judge: {escape(opinion.reason)} ({', '.join(opinion.evidence)})")
        if evaluation.passed:
            reasons.append(f"[dim]{escape(anchors.anchor(name, given.score))}[/]")
        table.add_row(*cells, "\n".join(reasons))
    console.print(table)
    console.print(f"total {marks.total:g} of 20 ({marks.skill}, by {escape(marks.source)})", highlight=False)
    if judged is not None:
        for line in _judge_lines(judged):
            console.print(escape(line), highlight=False)
    if gained.speedup is None or gained.rubric is None or gained.multiplier is None:
        why = ", ".join(gained.hacks) if gained.hack else evaluation.status
        console.print(f"reward 0: {escape(why)}", highlight=False)
    else:
        level = " (the difference lies within the measured interval)" if gained.within_interval else ""
        console.print(
            f"reward {gained.value:.3f} = min(({gained.speedup:.3f} + {gained.settings.tau:g}) x "
            f"{gained.multiplier:.3f}, {gained.settings.largest:g}), speed over {gained.against}{level}",
            highlight=False,
        )
    if rubric is not None:
        show_asks(rubric)


def show_asks(rubric: TaskRubric) -> None:
    """What a good program for a task would do."""
    from rich.markup import escape

    from stitchcuda.report.terminal import new_console

    console = new_console()
    names = ", ".join(f"{d.operator} {d.share:.0%}" for d in rubric.dominant)
    console.print(
        f"\nA good program for {escape(rubric.task)} ({rubric.precision}, {escape(rubric.device)}; {rubric.author})",
        style="bold",
        highlight=False,
    )
    if rubric.note:
        console.print(escape(f"by rules: {rubric.note}"), highlight=False)
    console.print(f"dominant operators: {escape(names)}", highlight=False)
    ceilings = []
    if rubric.copy_bytes_per_second is not None:
        ceilings.append(f"{rubric.copy_bytes_per_second / 1e9:.4g} GB/s copied")
    if rubric.flops_per_second is not None:
        ceilings.append(f"{rubric.flops_per_second / 1e12:.3g} TFLOP/s")
    if ceilings:
        console.print(f"measured ceilings: {', '.join(ceilings)}", highlight=False)
    for ask in rubric.asks:
        weight = f" (weight {ask.weight} of 5)" if ask.weight is not None else ""
        console.print(f"- {escape(ask.text)}{weight}; up to {ask.gain:.1f}x", highlight=False)


def show_calibration(calibration: Calibration) -> None:
    """How far a judge is from known marks, and what follows."""
    from rich.table import Table

    from stitchcuda.report.terminal import new_console
    from stitchcuda.reward.model import DIMENSIONS

    console = new_console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("dimension", no_wrap=True)
    for title in ("bias (taken off)", "spread", "rank correlation", "within half a level"):
        table.add_column(title, justify="right")
    table.add_column("may raise marks")
    for name in DIMENSIONS:
        found = calibration.dimensions[name]
        rank = "-" if found.spearman is None else f"{found.spearman:.2f}"
        raises = (
            "no: honesty is never raised" if name == "anti_hacking" else "yes" if calibration.raises(name) else "no"
        )
        table.add_row(
            name.replace("_", " "), f"{found.bias:+.2f}", f"{found.spread:.2f}", rank, f"{found.exact:.0%}", raises
        )
    console.print(table)
    console.print(
        f"{calibration.model} on {calibration.programs} programs with known marks, {calibration.failures} failed",
        highlight=False,
    )


def _opinion(judged: JudgeOutcome, name: Dimension) -> Opinion | None:
    """The one that the median is nearest to."""
    given = [vote.verdict.opinion(name) for vote in judged.votes if vote.verdict is not None]
    middle = judged.medians.get(name)
    return min(given, key=lambda opinion: abs(opinion.score - middle)) if given and middle is not None else None


def _judge_lines(judged: JudgeOutcome) -> list[str]:
    usable = sum(vote.verdict is not None for vote in judged.votes)
    known = "calibrated" if judged.calibrated else "not calibrated: it can only lower marks"
    lines = [f"judge {judged.model} ({known}): {judged.outcome}, {usable} of {len(judged.votes)} votes used"]
    if judged.reason:
        lines.append(f"the evidence stands alone: {judged.reason}")
    lines += judged.notes
    if judged.dissent():
        lines.append(f"votes differ by two levels or more on {', '.join(judged.dissent()).replace('_', ' ')}")
    if judged.requests:
        money = f", ${judged.usd:.4f}" if judged.usd else ""
        lines.append(
            f"{judged.requests} requests, {judged.input_tokens:,} tokens in and {judged.output_tokens:,} out{money}"
        )
    return lines
