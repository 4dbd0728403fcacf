"""``stitchcuda optimize``: a PyTorch program in, a verified faster one out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from stitchcuda.workflow.config import RunConfig
    from stitchcuda.workflow.events import Event, EventSink
    from stitchcuda.workflow.result import Result


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("optimize")(optimize)


def optimize(
    task: str = typer.Argument(..., metavar="TASK", help="a .py file, or kernelbench:LEVEL/ID"),
    target: str = typer.Option("auto", help="auto, cuda or cpu", rich_help_panel="Task"),
    precision: str | None = typer.Option(
        None, help="fp32 (strict), tf32, fp16 or bf16; default: the task's own", rich_help_panel="Task"
    ),
    root: Path | None = typer.Option(None, help="KernelBench's checkout or Parquet folder", rich_help_panel="Task"),
    inputs: Path | None = typer.Option(None, help="real inputs, saved by torch.save", rich_help_panel="Task"),
    checkpoint: Path | None = typer.Option(None, help="real weights", rich_help_panel="Task"),
    submodule: str | None = typer.Option(None, help="optimise only this part of the model", rich_help_panel="Task"),
    model: str = typer.Option("recipes", help="recipes (no key needed), or PROVIDER:NAME", rich_help_panel="Mind"),
    planner_model: str | None = typer.Option(None, help="another model for the Planner", rich_help_panel="Mind"),
    coder_model: str | None = typer.Option(None, help="another model for drafts", rich_help_panel="Mind"),
    repair_model: str | None = typer.Option(None, help="another model for repairs", rich_help_panel="Mind"),
    verifier_model: str | None = typer.Option(None, help="another model for the Verifier", rich_help_panel="Mind"),
    base_url: str | None = typer.Option(None, help="an OpenAI-compatible endpoint", rich_help_panel="Mind"),
    max_output_tokens: int | None = typer.Option(
        None, help="longest reply, tokens (default: 4,000 to 16,000 by role)", rich_help_panel="Mind"
    ),
    knowledge: bool = typer.Option(
        True, "--knowledge/--no-knowledge", help="look things up for the model", rich_help_panel="Mind"
    ),
    budget: str = typer.Option("standard", help="preset: quick, standard or deep", rich_help_panel="Budget"),
    iterations: int | None = typer.Option(
        None, help="at most so many candidate programs, repairs not counted", rich_help_panel="Budget"
    ),
    seconds: float | None = typer.Option(None, help="at most so much wall time, seconds", rich_help_panel="Budget"),
    tokens: int | None = typer.Option(None, help="at most so many tokens", rich_help_panel="Budget"),
    budget_usd: float | None = typer.Option(None, help="at most so many dollars", rich_help_panel="Budget"),
    target_speedup: float | None = typer.Option(
        None, help="stop at this speedup over the best stock option", rich_help_panel="Budget"
    ),
    sol_fraction: float = typer.Option(
        0.8, help="stop at this fraction of the hardware's bound", rich_help_panel="Budget"
    ),
    seeds: bool = typer.Option(
        True, "--seeds/--no-seeds", help="try the recipes' best idea beside the model's", rich_help_panel="Search"
    ),
    agents: str = typer.Option(
        "full", help="full, or a comparison system: coder-judge, single", rich_help_panel="Search"
    ),
    ablate: list[str] = typer.Option(
        [], help="switch a part off: planner, verifier, profile, knowledge, recipes", rich_help_panel="Search"
    ),
    beam: int | None = typer.Option(None, help="ideas kept alive", rich_help_panel="Search"),
    drafts: int | None = typer.Option(None, help="drafts per idea", rich_help_panel="Search"),
    parallel: int | None = typer.Option(
        None, help="drafts and ideas worked on at the same time (default: all of a round)", rich_help_panel="Search"
    ),
    counters: int | None = typer.Option(
        None,
        help="kernels whose hardware counters the agents see (default: 3 with a model on a GPU, else none)",
        rich_help_panel="Search",
    ),
    repairs: int = typer.Option(3, help="repairs per candidate", rich_help_panel="Search"),
    replans: int | None = typer.Option(None, help="further plans when the first is used up", rich_help_panel="Search"),
    from_program: Path | None = typer.Option(
        None, "--from", metavar="PROGRAM", help="start from this program", rich_help_panel="Task"
    ),
    approve_plan: bool = typer.Option(
        False, "--approve-plan", help="look at the plan, and edit it, first", rich_help_panel="Search"
    ),
    compute: str = typer.Option(
        "local", help="where evaluations run: local, spool:DIR, ray or ray:ADDRESS", rich_help_panel="Search"
    ),
    confirm: str = typer.Option(
        "publish", help="final check of the best program: publish, screen or none", rich_help_panel="Search"
    ),
    out: Path = typer.Option(Path("runs"), help="folder of runs", rich_help_panel="Output"),
    yes: bool = typer.Option(False, "--yes", "-y", help="do not ask before paid work", rich_help_panel="Budget"),
    no_live: bool = typer.Option(
        False, "--no-live", help="plain lines instead of a live screen", rich_help_panel="Output"
    ),
    as_json: bool = typer.Option(False, "--json", help="print the summary object only", rich_help_panel="Output"),
) -> None:
    """Optimise TASK: plan, write, check, measure and profile until a faster program stands or the budget ends."""
    from stitchcuda.workflow.config import RunConfig
    from stitchcuda.workflow.run import optimize as start

    config = RunConfig.checked(
        task=task if task.startswith("kernelbench:") else str(Path(task).resolve()),
        root=_absolute(root),
        target=target,
        precision=precision,
        inputs=_absolute(inputs),
        checkpoint=_absolute(checkpoint),
        submodule=submodule,
        model=model,
        planner_model=planner_model,
        coder_model=coder_model,
        repair_model=repair_model,
        verifier_model=verifier_model,
        base_url=base_url,
        max_output_tokens=max_output_tokens,
        knowledge=knowledge,
        budget=budget,
        iterations=iterations,
        seconds=seconds,
        tokens=tokens,
        usd=budget_usd,
        target_speedup=target_speedup,
        sol_fraction=sol_fraction,
        seeds=seeds,
        agents=agents,
        ablate=ablate,
        beam=beam,
        drafts=drafts,
        parallel=parallel,
        counters=counters,
        repairs=repairs,
        replans=replans,
        from_program=_absolute(from_program),
        approve_plan=approve_plan,
        compute=compute,
        confirm=confirm,
    )
    if not config.free:
        _agree_to_pay(config, ask=not (yes or as_json))
    with _held(config.compute):
        show(
            lambda sink: start(config, events=sink, runs=out, ask=ask_for_plan),
            config,
            live=not no_live,
            as_json=as_json,
        )


@contextlib.contextmanager
def _held(compute: str) -> Iterator[None]:
    """Keep a place open for the whole run, and say who must come when nobody works there."""
    from stitchcuda.workflow.bench import shared_compute

    if compute == "local":
        yield
        return
    with shared_compute(compute) as place:
        name, _, folder = compute.partition(":")
        if name == "spool" and not place.capacity().workers:
            typer.echo(f"nobody works on {folder} yet; start a worker: stitchcuda worker --spool {folder}", err=True)
        yield


def show(run: Callable[[EventSink], Result], config: RunConfig, *, live: bool, as_json: bool) -> None:
    """Do a run with a view on it, print how it ended, and exit as it ended."""
    from stitchcuda.report.terminal import TerminalView, new_console, result_lines, wants_live
    from stitchcuda.workflow.interruption import Interrupted

    console = new_console(stderr=as_json)
    live = live and not as_json and not config.approve_plan and wants_live(console)
    recorder = _Recorder(TerminalView(console, live=live, limits=config.limits(), paid=not config.free), as_json)
    try:
        with recorder.view:
            result = run(recorder)
    except Interrupted as stopped:
        typer.echo(f"{stopped}; go on with: stitchcuda runs resume {quote(str(stopped.folder))}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    except Exception as error:  # whatever it was, what is paid and measured is kept
        if recorder.folder is not None and recorder.folder.is_dir() and "runs resume" not in str(error):
            typer.echo(f"go on with: stitchcuda runs resume {quote(str(recorder.folder))}", err=True)
        raise
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        for line in result_lines(result, recorder.profile):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if result.status != "awaiting_approval":
        for line in _report(result):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(result.exit_code)


def _report(result: Result) -> list[str]:
    """Write the run's report, and give the best program's scorecard as lines; the result stands whatever fails here."""
    from stitchcuda.errors import StitchError
    from stitchcuda.report.run_html import write_report
    from stitchcuda.report.scorecard import scorecards
    from stitchcuda.report.terminal import scorecard_lines
    from stitchcuda.workflow.folder import RunFolder

    folder = RunFolder(Path(result.run))
    try:
        report = write_report(folder)
        card = scorecards(folder).get(result.number) if result.number is not None else None
    except StitchError as error:
        return [f"no report: {error}"]
    return [*(scorecard_lines(card) if card is not None else []), f"report            {report}"]


def print_json(data: Any) -> None:
    """One standard JSON document on stdout."""
    import json

    from stitchcuda.workflow.result import finite

    typer.echo(json.dumps(finite(data), indent=2))


class _Recorder:
    """Passes events to the view and keeps what the end needs."""

    def __init__(self, view: Any, quiet: bool) -> None:
        self.view = view
        self.quiet = quiet
        self.folder: Path | None = None
        self.profile: Any = None

    def emit(self, event: Event) -> None:
        """Pass on."""
        from stitchcuda.workflow import events

        if isinstance(event, events.RunStarted):
            self.folder = event.folder
        elif isinstance(event, events.ProfileTaken) and event.number is None:
            self.profile = event.profile
        if not self.quiet:
            self.view.emit(event)


def ask_for_plan(path: Path, waited: bool, problem: str) -> bool:
    """Let the person at the terminal edit the plan; without a terminal, wait for the run to be resumed."""
    import os
    import shlex
    import subprocess

    from stitchcuda.workflow.approval import later

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return later(path, waited, problem)
    if problem:
        typer.echo(f"error: {problem}", err=True)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if editor:
        subprocess.run([*shlex.split(editor), str(path)], check=False)
    else:
        typer.echo(f"The plan is in {path}. Edit it there now if it should be changed.")
    return typer.confirm("Go on with this plan?", default=True)


def _agree_to_pay(config: RunConfig, *, ask: bool) -> None:
    """Say what the run may cost; ask when somebody is there to answer."""
    from stitchcuda.agents.budgets import PRESETS
    from stitchcuda.agents.llm import estimate
    from stitchcuda.agents.lookup import REFERENCE_TOKENS
    from stitchcuda.agents.settings import Limits, MindSettings
    from stitchcuda.task.loader import read_source

    limits = config.limits()
    budget = PRESETS[config.budget].model_copy(
        update={"candidates": limits.iterations, "tokens": limits.tokens, "usd": limits.usd, "repairs": config.repairs}
    )
    settings = MindSettings(
        planner_model=config.planner_model,
        coder_model=config.coder_model,
        repair_model=config.repair_model,
        verifier_model=config.verifier_model,
    )
    cost = estimate(
        config.model,
        budget,
        settings=settings,
        limits=Limits(tokens=limits.tokens, usd=limits.usd),
        source_characters=len(read_source(config.task, Path(config.root) if config.root else None)),
        reference_tokens=REFERENCE_TOKENS if config.looks_up else 0,
    )
    typer.echo(f"{config.model}: {cost.sentence}", err=True)
    if ask and sys.stdin.isatty() and not typer.confirm("Go on?", default=True, err=True):
        raise typer.Exit(1)


def _absolute(path: Path | None) -> str | None:
    return str(path.resolve()) if path is not None else None
