"""``stitchcuda rubric TASK PROGRAM``: a program's marks with their evidence; ``rubric make TASK``: what a task asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from pydantic import BaseModel

    from stitchcuda.cli._session import Session
    from stitchcuda.evaluation.model import Evaluation
    from stitchcuda.reward.model import Reward, RubricScore, Skill
    from stitchcuda.reward.observe import Observer
    from stitchcuda.reward.task_rubric import TaskRubric

    Document = TypeVar("Document", bound=BaseModel)

SCORE = "score"


class _ScoreByDefault(TyperGroup):
    """A group whose first word may be a task: then its program is scored."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # the context's type is private to typer
        """Put the command's name in front where the words do not begin with one."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [SCORE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ScoreByDefault,
    no_args_is_help=True,
    help="Mark a program from evidence: 'rubric TASK PROGRAM'. Say what a task asks for: 'rubric make TASK'.",
)

_JSON = typer.Option("--json", help="Print one JSON object.")
_TARGET = typer.Option(help="auto, cuda or cpu.")
_ROOT = typer.Option(help="KernelBench's checkout or Parquet folder.")
_PRECISION = typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
_TASK = typer.Argument(metavar="TASK", help="A .py file, or kernelbench:LEVEL/ID.")


def register(parent: typer.Typer) -> None:
    """Add the verb."""
    parent.add_typer(app, name="rubric")


@app.command(SCORE)
def score(
    task: Annotated[str, _TASK],
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A .py file or a folder with program.py.")],
    as_json: Annotated[bool, _JSON] = False,
    tier: Annotated[str, typer.Option(help="screen (quick) or publish.")] = "screen",
    improves: Annotated[
        Path | None, typer.Option(help="The program that this one improves: marks are those of the skill 'improve'.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="The Feedback it was improved by, as JSON.", dir_okay=False)
    ] = None,
    step: Annotated[
        Path | None, typer.Option(help="The Step of a Plan that was asked for, as JSON.", dir_okay=False)
    ] = None,
    baseline: Annotated[str, typer.Option(help="Reward over: best (stock option) or eager (as published).")] = "best",
    counters: Annotated[
        int, typer.Option(min=0, max=20, help="So many of the longest kernels are also read by Nsight Compute.")
    ] = 0,
    target: Annotated[str, _TARGET] = "auto",
    root: Annotated[Path | None, _ROOT] = None,
    precision: Annotated[str | None, _PRECISION] = None,
) -> None:
    """Mark PROGRAM from evidence: honesty, engineering, operators taken over, and whether it is what was asked for.

    Evaluates it, profiles it beside the task, and reads its machine
    code; no language model. Each mark is 1 to 5 with its reasons, and
    the reward is shown with every part of it.
    Exit code 0: correct and honest; 1: not; 2: wrong use.
    """
    from stitchcuda.agents.feedback import Feedback
    from stitchcuda.agents.plan import Step
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import StitchError
    from stitchcuda.program.files import load_program
    from stitchcuda.reward.evidence import mark
    from stitchcuda.reward.formula import reward
    from stitchcuda.reward.model import RewardSettings

    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    if baseline not in ("best", "eager"):
        raise StitchError(f"unknown baseline '{baseline}'; use best or eager")
    if feedback is not None and improves is None:
        raise StitchError("--feedback is about an earlier program; name it with --improves")
    written = load_program(program)
    earlier = load_program(improves) if improves is not None else None
    asked = _read(step, Step) if step is not None else None
    word = _read(feedback, Feedback) if feedback is not None else None
    settings = RewardSettings.preset("paper") if baseline == "eager" else RewardSettings()
    with open_session(task, target=target, root=root, precision=precision) as session:
        observer = _observer(session, counters)
        seen = observer.observe(
            written,
            "publish" if tier == "publish" else "screen",
            step=asked,
            improves=earlier,
            feedback=word,
        )
        rubric = _task_rubric(session, observer, measure=seen.evaluation.passed)
    skill: Skill = "improve" if earlier is not None else "scratch"
    marks = mark(seen, skill)
    step_before = seen.previous if asked is not None and seen.previous is not None and seen.previous.passed else None
    gained = reward(seen.evaluation, marks, skill, settings, previous=step_before)
    if as_json:
        _print_json(seen.evaluation, marks, gained, rubric)
    else:
        _show(seen.evaluation, marks, gained, rubric)
    if not seen.evaluation.passed:
        raise typer.Exit(1)


@app.command("make")
def make(
    task: Annotated[str, _TASK],
    as_json: Annotated[bool, _JSON] = False,
    target: Annotated[str, _TARGET] = "auto",
    root: Annotated[Path | None, _ROOT] = None,
    precision: Annotated[str | None, _PRECISION] = None,
) -> None:
    """Write down what a good program for TASK would do, from its profile and the device's ceilings, and keep it.

    It is kept in the cache folder by the task's hash and shown
    whenever a program for the task is marked.
    """
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import ProfilerError
    from stitchcuda.reward import task_rubric
    from stitchcuda.workflow.run import data_folder

    with open_session(task, target=target, root=root, precision=precision) as session:
        observer = _observer(session, 0)
        reference = observer.reference()
        if reference is None:
            raise ProfilerError("without a profile of the task there is no rubric; see 'stitchcuda doctor'")
        rubric = task_rubric.make(session.task, reference, session.device, observer.bound())
        path = task_rubric.place(data_folder(), session.task, session.device)
        task_rubric.store(rubric, path)
    if as_json:
        typer.echo(rubric.model_dump_json(indent=2))
        return
    _show_asks(rubric)
    typer.echo(f"kept {path}", err=True)


def _observer(session: Session, counters: int) -> Observer:
    from stitchcuda.reward.observe import Observer
    from stitchcuda.workflow.run import data_folder

    return Observer(
        session.task,
        session.facts,
        session.device,
        session.evaluator,
        data_folder(),
        counters=counters,
        remark=lambda text: typer.echo(text, err=True),
    )


def _task_rubric(session: Session, observer: Observer, *, measure: bool) -> TaskRubric | None:
    """The rubric that is kept for the task; else, with ``measure``, the one that its profile gives."""
    from stitchcuda.reward import task_rubric
    from stitchcuda.workflow.run import data_folder

    path = task_rubric.place(data_folder(), session.task, session.device)
    if (kept := task_rubric.stored(path, session.task)) is not None:
        return kept
    found = observer.reference() if measure else None
    return task_rubric.make(session.task, found, session.device, observer.bound()) if found is not None else None


def _read(path: Path, model: type[Document]) -> Document:
    from pydantic import ValidationError

    from stitchcuda.errors import StitchError

    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        first = " ".join(str(error).splitlines()[:3])
        raise StitchError(f"{path} is no {model.__name__} ({first}); a run's journal holds them") from None


def _print_json(evaluation: Evaluation, marks: RubricScore, gained: Reward, rubric: TaskRubric | None) -> None:
    import json

    document = {
        "status": evaluation.status,
        "score": marks.model_dump(mode="json"),
        "total": marks.total,
        "reward": gained.model_dump(mode="json"),
        "task_rubric": rubric.model_dump(mode="json") if rubric is not None else None,
        "evaluation": evaluation.model_dump(mode="json"),
    }
    typer.echo(json.dumps(document, indent=2))


def _show(evaluation: Evaluation, marks: RubricScore, gained: Reward, rubric: TaskRubric | None) -> None:
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
    table.add_column("evidence")
    for name in DIMENSIONS:
        given = marks.marks[name]
        reasons = [escape(reason) for reason in given.reasons]
        if evaluation.passed:
            reasons.append(f"[dim]{escape(anchors.anchor(name, given.score))}[/]")
        table.add_row(name.replace("_", " "), f"{given.score:g}", "\n".join(reasons))
    console.print(table)
    console.print(f"total {marks.total:g} of 20 ({marks.skill}, by {marks.source})", highlight=False)
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
        _show_asks(rubric)


def _show_asks(rubric: TaskRubric) -> None:
    from rich.markup import escape

    from stitchcuda.report.terminal import new_console

    console = new_console()
    names = ", ".join(f"{d.operator} {d.share:.0%}" for d in rubric.dominant)
    console.print(
        f"\nA good program for {escape(rubric.task)} ({rubric.precision}, {escape(rubric.device)}; {rubric.author})",
        style="bold",
        highlight=False,
    )
    console.print(f"dominant operators: {escape(names)}", highlight=False)
    ceilings = []
    if rubric.copy_bytes_per_second is not None:
        ceilings.append(f"{rubric.copy_bytes_per_second / 1e9:.4g} GB/s copied")
    if rubric.flops_per_second is not None:
        ceilings.append(f"{rubric.flops_per_second / 1e12:.3g} TFLOP/s")
    if ceilings:
        console.print(f"measured ceilings: {', '.join(ceilings)}", highlight=False)
    for ask in rubric.asks:
        console.print(f"- {escape(ask.text)}; up to {ask.gain:.1f}x", highlight=False)
