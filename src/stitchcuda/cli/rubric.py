"""``stitchcuda rubric TASK PROGRAM``: a program's marks with their evidence, and a judge's beside them on request.

``rubric make TASK`` writes down what a task asks for, ``rubric calibrate FILE`` tries a judge on known marks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from pydantic import BaseModel

    from stitchcuda.cli._session import Session
    from stitchcuda.reward.judge import Judge
    from stitchcuda.reward.model import Skill
    from stitchcuda.reward.observe import Observer
    from stitchcuda.reward.seen import Seen
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
    help="Mark a program from evidence: 'rubric TASK PROGRAM'. Say what a task asks for: 'rubric make TASK'. "
    "Try a judge on programs with known marks: 'rubric calibrate FILE --judge PROVIDER:NAME'.",
)

_JSON = typer.Option("--json", help="Print one JSON object.")
_TARGET = typer.Option(help="auto, cuda or cpu.")
_ROOT = typer.Option(help="KernelBench's checkout or Parquet folder.")
_PRECISION = typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
_BASE_URL = typer.Option(help="Address of an OpenAI-compatible (or the provider's) server.")
_VOTES = typer.Option(min=1, max=15, help="Answers that the judge is asked for; their median counts.")
_TEMPERATURE = typer.Option(min=0.0, max=2.0, help="The judge's sampling temperature.")
_TASK = typer.Argument(metavar="TASK", help="A .py file, kernelbench:LEVEL/ID, or a .json that --keep wrote.")


def register(parent: typer.Typer) -> None:
    """Add the verb."""
    parent.add_typer(app, name="rubric")


@app.command(SCORE)
def score(
    task: Annotated[str, _TASK],
    program: Annotated[
        Path | None,
        typer.Argument(metavar="PROGRAM", help="A .py file or a folder with program.py; none for what was kept."),
    ] = None,
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
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what was seen, to be marked or judged elsewhere: 'rubric FILE'."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="Let this model judge beside the evidence.")
    ] = None,
    votes: Annotated[int, _VOTES] = 3,
    temperature: Annotated[float, _TEMPERATURE] = 0.3,
    base_url: Annotated[str | None, _BASE_URL] = None,
    target: Annotated[str, _TARGET] = "auto",
    root: Annotated[Path | None, _ROOT] = None,
    precision: Annotated[str | None, _PRECISION] = None,
) -> None:
    """Mark PROGRAM from evidence: honesty, engineering, operators taken over, and whether it is what was asked for.

    Evaluates it, profiles it beside the task, and reads its machine
    code; no language model unless --judge names one. Each mark is 1 to 5
    with its reasons, and the reward is shown with every part of it.
    A judge can lower honesty, moves other marks by 1 at most, and raises
    none before it was calibrated.
    Exit code 0: correct and honest; 1: not; 2: wrong use.
    """
    from stitchcuda.agents.feedback import Feedback
    from stitchcuda.agents.plan import Step
    from stitchcuda.cli import _scorecard
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import StitchError
    from stitchcuda.program.files import load_program
    from stitchcuda.reward.evidence import mark
    from stitchcuda.reward.formula import reward
    from stitchcuda.reward.model import RewardSettings
    from stitchcuda.reward.score import pays_over_previous
    from stitchcuda.reward.seen import Seen, read_seen

    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    if baseline not in ("best", "eager"):
        raise StitchError(f"unknown baseline '{baseline}'; use best or eager")
    if feedback is not None and improves is None:
        raise StitchError("--feedback is about an earlier program; name it with --improves")
    settings = RewardSettings.preset("paper") if baseline == "eager" else RewardSettings()
    asking = _judge(judge, base_url, votes, temperature) if judge is not None else None
    if program is None and task.endswith(".json"):
        if improves is not None or step is not None:
            raise StitchError(f"{task} says itself what was asked for; leave --improves and --step out")
        document = read_seen(Path(task))
        rubric = _rubric_of(document)
    elif program is None:
        raise StitchError("name the PROGRAM to mark; only what --keep wrote (a .json file) is marked without one")
    else:
        written = load_program(program)
        earlier = load_program(improves) if improves is not None else None
        asked = _read(step, Step) if step is not None else None
        word = _read(feedback, Feedback) if feedback is not None else None
        with open_session(task, target=target, root=root, precision=precision) as session:
            observer = _observer(session, counters)
            observed = observer.observe(
                written,
                "publish" if tier == "publish" else "screen",
                step=asked,
                improves=earlier,
                feedback=word,
            )
            rubric = _task_rubric(session, observer, measure=observed.evaluation.passed)
            bound = observer.bound() if observed.evaluation.passed else None
            skill: Skill = "improve" if earlier is not None else "scratch"
            document = Seen.of(session.task, skill, observed, session.device, bound)
    if keep is not None:
        keep.write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    seen, asked_for = document.observed, document.skill
    marks, judged = mark(seen, asked_for), None
    if asking is not None:
        judged = asking.judge(document.task, seen, marks, rubric)
        marks = judged.score
    before = seen.previous if pays_over_previous(asked_for, seen.step) else None
    previous = before if before is not None and before.passed else None
    gained = reward(seen.evaluation, marks, asked_for, settings, previous=previous)
    if as_json:
        _scorecard.print_json(seen.evaluation, marks, gained, rubric, judged)
    else:
        _scorecard.show(seen.evaluation, marks, gained, rubric, judged)
    if not seen.evaluation.passed:
        raise typer.Exit(1)


@app.command("make")
def make(
    task: Annotated[str, _TASK],
    as_json: Annotated[bool, _JSON] = False,
    model: Annotated[
        str, typer.Option(metavar="PROVIDER:NAME", help="Who drafts it: rules (no model), or a strong model.")
    ] = "rules",
    base_url: Annotated[str | None, _BASE_URL] = None,
    target: Annotated[str, _TARGET] = "auto",
    root: Annotated[Path | None, _ROOT] = None,
    precision: Annotated[str | None, _PRECISION] = None,
) -> None:
    """Write down what a good program for TASK would do, from its profile and the device's ceilings, and keep it.

    It is kept in the cache folder by the task's hash and shown
    whenever a program for the task is marked. A model's draft is held to
    what was measured; where it fails, the rules write it and say why.
    """
    from stitchcuda.agents.providers import check_access
    from stitchcuda.cli import _scorecard
    from stitchcuda.cli._session import open_session
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.errors import ProfilerError, RewardError
    from stitchcuda.reward import task_rubric
    from stitchcuda.reward.seen import read_seen

    if model != "rules":
        check_access(model, base_url)
    if task.endswith(".json"):
        document = read_seen(Path(task))
        found, device, reference, bound = document.task, document.device, document.reference, document.bound
        if device is None:
            raise RewardError(f"{task} does not say on what device it was measured; keep it again")
    else:
        with open_session(task, target=target, root=root, precision=precision) as session:
            observer = _observer(session, 0)
            found, device, reference, bound = session.task, session.device, observer.reference(), observer.bound()
    if reference is None:
        raise ProfilerError("without a profile of the task there is no rubric; see 'stitchcuda doctor'")
    if model == "rules":
        rubric = task_rubric.make(found, reference, device, bound)
    else:
        from stitchcuda.reward.rubric_draft import draft

        rubric = draft(found, reference, device, bound, model=model, base_url=base_url, notify=_remark)
    path = task_rubric.place(data_folder(), found, device)
    task_rubric.store(rubric, path)
    if as_json:
        typer.echo(rubric.model_dump_json(indent=2))
        return
    _scorecard.show_asks(rubric)
    typer.echo(f"kept {path}", err=True)


@app.command("calibrate")
def calibrate(
    known: Annotated[
        Path, typer.Argument(metavar="FILE", help="Programs with known marks, one JSON object a line.", dir_okay=False)
    ],
    judge: Annotated[str, typer.Option(metavar="PROVIDER:NAME", help="The model to try.")],
    as_json: Annotated[bool, _JSON] = False,
    votes: Annotated[int, _VOTES] = 3,
    temperature: Annotated[float, _TEMPERATURE] = 0.3,
    base_url: Annotated[str | None, _BASE_URL] = None,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="Programs that are asked about at the same time.")] = 4,
) -> None:
    """Ask a judge about programs with known marks, and keep its bias and agreement by the model's name.

    Nothing is run: FILE holds what was seen of each program. From then on
    'rubric --judge' with the same votes and temperature takes the bias off,
    and lets the judge raise marks on dimensions where it agrees.
    """
    from stitchcuda.cli import _scorecard
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.reward import judge_calibration
    from stitchcuda.reward.judge_known import read, try_judge

    programs = read(known)
    asking = _judge(judge, base_url, votes, temperature, fresh=True)
    found, _ = try_judge(asking, programs, at_once=at_once, tell=_remark)
    path = judge_calibration.place(data_folder(), judge)
    judge_calibration.store(found, path)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    _scorecard.show_calibration(found)
    typer.echo(f"kept {path}", err=True)


def _judge(model: str, base_url: str | None, votes: int, temperature: float, *, fresh: bool = False) -> Judge:
    """The judge, with what is known of it unless ``fresh``. Raises StitchError where it cannot be asked."""
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.reward import judge_calibration
    from stitchcuda.reward.judge import Judge
    from stitchcuda.reward.judge_model import JudgeSettings

    settings = JudgeSettings(model=model, base_url=base_url, votes=votes, temperature=temperature)
    known = None if fresh else judge_calibration.stored(judge_calibration.place(data_folder(), model))
    return Judge(settings, known, _remark)


def _remark(text: str) -> None:
    typer.echo(text, err=True)


def _observer(session: Session, counters: int) -> Observer:
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.reward.observe import Observer

    return Observer(
        session.task,
        session.facts,
        session.device,
        session.evaluator,
        data_folder(),
        counters=counters,
        remark=_remark,
    )


def _task_rubric(session: Session, observer: Observer, *, measure: bool) -> TaskRubric | None:
    """The rubric that is kept for the task; else, with ``measure``, the one that its profile gives."""
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.reward import task_rubric

    path = task_rubric.place(data_folder(), session.task, session.device)
    if (kept := task_rubric.stored(path, session.task)) is not None:
        return kept
    found = observer.reference() if measure else None
    return task_rubric.make(session.task, found, session.device, observer.bound()) if found is not None else None


def _rubric_of(document: Seen) -> TaskRubric | None:
    """The rubric that is kept for the task of what was seen, else the one that its profile gives."""
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.reward import task_rubric

    if document.device is None:
        return None
    path = task_rubric.place(data_folder(), document.task, document.device)
    if (kept := task_rubric.stored(path, document.task)) is not None:
        return kept
    if document.reference is None:
        return None
    return task_rubric.make(document.task, document.reference, document.device, document.bound)


def _read(path: Path, model: type[Document]) -> Document:
    from pydantic import ValidationError

    from stitchcuda.errors import StitchError

    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first = " ".join(str(error).splitlines()[:3])
        raise StitchError(f"{path} is no {model.__name__} ({first}); a run's journal holds them") from None
