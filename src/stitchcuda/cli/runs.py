"""``stitchcuda runs``: look at runs, compare what they hold, go on with them, take programs out of them."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stitchcuda.program.model import Program
    from stitchcuda.workflow.folder import RunFolder

runs = typer.Typer(name="runs", help="List, show, compare, resume and export runs.", no_args_is_help=True)

RUN = typer.Argument(..., metavar="RUN", help="a run's folder, its name or a part of it, or 'last'")
OUT = typer.Option(Path("runs"), "--out", help="folder of runs")
JSON = typer.Option(False, "--json", help="print one JSON object")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(runs)


@runs.command("list")
def list_(out: Path = OUT, as_json: bool = JSON) -> None:
    """List the runs, newest first."""
    from dataclasses import asdict

    from stitchcuda.cli.optimize import print_json
    from stitchcuda.workflow.folder import list_runs

    found = list_runs(out)
    if as_json:
        print_json([{**asdict(entry), "path": str(entry.path)} for entry in found])
        return
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.report.terminal import new_console

    table = Table(box=None, pad_edge=False)
    for name in ("run", "task", "status", "over best", "over eager", "attempts", "mind"):
        table.add_column(name, no_wrap=name == "run", overflow="fold")
    for entry in found:
        table.add_row(
            escape(entry.path.name),
            escape(entry.task),
            entry.status,
            f"{entry.over_best:.2f}x" if entry.over_best is not None else "",
            f"{entry.eager:.2f}x" if entry.eager is not None else "",
            str(entry.attempts),
            escape(entry.mind),
        )
    console = new_console()
    console.print(table if found else f"no runs in {out}")
    for entry in found:
        if entry.problem:
            line = f"{entry.path.name}: {entry.status}: {entry.problem}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


@runs.command("show")
def show(
    run: str = typer.Argument("last", metavar="[RUN]", help="a run's folder, its name or a part of it"),
    out: Path = OUT,
    as_json: bool = JSON,
) -> None:
    """Show what a run, the newest if none is named, tried, how it ended, and the scorecards of its programs."""
    from stitchcuda.cli.optimize import print_json
    from stitchcuda.errors import RunError
    from stitchcuda.report.scorecard import scorecards
    from stitchcuda.workflow.folder import find_run
    from stitchcuda.workflow.story import read_story

    folder = find_run(run, out)
    story = read_story(folder)
    try:
        cards = scorecards(folder)
    except RunError as error:  # the journal tells the rest
        typer.echo(f"no scorecards: {error}", err=True)
        cards = {}
    if as_json:
        marked = {f"{number:03d}": card.model_dump(mode="json") for number, card in cards.items()}
        print_json({**story.model_dump(mode="json"), "scorecards": marked})
        return
    from stitchcuda.report.terminal import (
        attempts_table,
        earlier_line,
        new_console,
        profile_lines,
        result_lines,
        scorecard_lines,
    )

    console = new_console()
    lines = [f"{story.task} by {story.mind}, {story.status}", f"run: {story.run}", f"device: {story.device}"]
    if story.reference is not None:
        lines += profile_lines(story.reference, "reference")
    for plan in story.plans:
        lines.append(f"plan: {plan.summary}")
        lines += [f"  - {idea.name}: {', '.join(step.title for step in idea.steps)}" for idea in plan.ideas]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if story.attempts:
        console.print(attempts_table(story.attempts, story.best, cards))
        for attempt in story.attempts:
            if attempt.diagnosis:
                console.print(
                    f"{attempt.number:03d}: {attempt.diagnosis}", markup=False, highlight=False, soft_wrap=True
                )
    if story.result is not None:
        for line in result_lines(story.result, story.reference):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        card = cards.get(story.result.number) if story.result.number is not None else None
        for line in scorecard_lines(card) if card is not None else []:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    elif story.earlier is not None:
        console.print(earlier_line(story.earlier), markup=False, highlight=False, soft_wrap=True)
    if story.result is None and story.status != "running":
        console.print(f"go on with: stitchcuda runs resume {quote(str(story.run))}", markup=False, soft_wrap=True)


@runs.command("report")
def report(run: str = RUN, out: Path = OUT, as_json: bool = JSON) -> None:
    """Write a run's report.html: result, scorecards, programs and profiles on one page that needs no other file."""
    from stitchcuda.cli.optimize import print_json
    from stitchcuda.report.run_html import write_report
    from stitchcuda.workflow.folder import find_run

    path = write_report(find_run(run, out))
    if as_json:
        print_json({"path": str(path)})
    else:
        typer.echo(str(path))


@runs.command("diff")
def diff(
    run: str = RUN,
    old: str = typer.Argument("reference", help="a program's number, 'best', or 'reference' (the task)"),
    new: str = typer.Argument("best", help="a program's number, or 'best'"),
    out: Path = OUT,
    as_json: bool = JSON,
) -> None:
    """Show how two programs of a run differ, as a unified diff; exit 1 when they do."""
    import difflib

    from stitchcuda.cli.optimize import print_json
    from stitchcuda.workflow.folder import find_run

    folder = find_run(run, out)
    before, after = _files(folder, old), _files(folder, new)
    changes: dict[str, list[str]] = {}
    for path in sorted(before.keys() | after.keys()):
        lines = difflib.unified_diff(
            before.get(path, "").splitlines(),
            after.get(path, "").splitlines(),
            f"{old}/{path}" if path in before else "/dev/null",
            f"{new}/{path}" if path in after else "/dev/null",
            lineterm="",
        )
        if changed := list(lines):
            changes[path] = changed
    if as_json:
        print_json({"old": old, "new": new, "files": {path: "\n".join(changed) for path, changed in changes.items()}})
    else:
        for changed in changes.values():
            typer.echo("\n".join(changed))
    raise typer.Exit(1 if changes else 0)


def _files(folder: RunFolder, which: str) -> dict[str, str]:
    from stitchcuda.errors import RunError

    if which == "reference":
        try:
            return {"program.py": (folder.path / "task.py").read_text(encoding="utf-8")}
        except FileNotFoundError:
            raise RunError(f"{folder.path} is not a run: it has no task.py.") from None
    return folder.load(which).files


@runs.command("resume")
def resume(
    run: str = RUN,
    out: Path = OUT,
    iterations: int | None = typer.Option(None, help="raise the limit of candidates, and go on when done"),
    seconds: float | None = typer.Option(None, help="raise the limit of wall time, seconds"),
    tokens: int | None = typer.Option(None, help="raise the limit of tokens"),
    budget_usd: float | None = typer.Option(None, help="raise the limit of dollars"),
    max_output_tokens: int | None = typer.Option(
        None, help="longest reply from here on, tokens; not kept for a later resume"
    ),
    no_live: bool = typer.Option(False, "--no-live", help="plain lines instead of a live screen"),
    as_json: bool = JSON,
) -> None:
    """Go on with a run where it stopped; nothing that its journal holds is done or paid for again."""
    from stitchcuda.cli.optimize import ask_for_plan
    from stitchcuda.cli.optimize import show as show_run
    from stitchcuda.workflow.config import RunConfig
    from stitchcuda.workflow.folder import CONFIG, find_run
    from stitchcuda.workflow.run import resume as go_on

    folder = find_run(run, out)
    config = RunConfig.read(folder.path / CONFIG)
    given = {"iterations": iterations, "seconds": seconds, "tokens": tokens, "usd": budget_usd}
    more = {name: value for name, value in given.items() if value is not None}
    length = {} if max_output_tokens is None else {"max_output_tokens": max_output_tokens}
    RunConfig.checked(**config.model_dump() | more | length)  # wrong use is said as on starting a run
    show_run(
        lambda sink: go_on(folder, events=sink, more=more, max_output_tokens=max_output_tokens, ask=ask_for_plan),
        config,
        live=not no_live,
        as_json=as_json,
    )


@runs.command("export")
def export(
    run: str = RUN,
    destination: Path = typer.Argument(..., metavar="TO", help="the .py file to write, or the folder with --package"),
    package: bool = typer.Option(
        False, "--package", help="write an importable folder that needs torch and what the task imports"
    ),
    which: str = typer.Option("best", "--program", help="a program's number, or 'best'"),
    force: bool = typer.Option(False, "--force", help="overwrite what is there"),
    out: Path = OUT,
    as_json: bool = JSON,
) -> None:
    """Take a program out of a run: a single KernelBench file, or a package that builds itself on first import."""
    from stitchcuda.cli.optimize import print_json
    from stitchcuda.errors import StitchError
    from stitchcuda.workflow.folder import find_run

    program: Program = find_run(run, out).load(which)
    if destination.exists() and not force:
        raise StitchError(f"{destination} exists; give another name, or --force to overwrite it.")
    if package:
        from stitchcuda.program.export import to_package

        to_package(program, destination, replace=force)
    else:
        from stitchcuda.program.export import to_kernelbench

        if destination.is_dir() or destination.suffix != ".py":
            raise StitchError(f"{destination} is no .py, which a KernelBench file is; for a folder use --package.")
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_text(to_kernelbench(program), encoding="utf-8")
    if as_json:
        print_json({"path": str(destination), "form": "package" if package else "kernelbench"})
    else:
        typer.echo(str(destination))
