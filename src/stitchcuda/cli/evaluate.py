"""``stitchcuda evaluate TASK PROGRAM``: build, check and time one Program, and print its Evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stitchcuda.evaluation.model import Evaluation


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("evaluate")(evaluate)


def evaluate(
    task: str = typer.Argument(help="A task file (.py) or kernelbench:LEVEL/ID."),
    program: Path = typer.Argument(help="A .py file that defines ModelNew, or a folder with program.py."),
    tier: str = typer.Option("screen", help="screen (quick) or publish (several processes, baselines measured anew)."),
    as_json: bool = typer.Option(False, "--json", help="Print the Evaluation as one JSON object."),
    target: str = typer.Option("auto", help="auto, cuda or cpu."),
    root: Path | None = typer.Option(None, help="KernelBench checkout or Parquet data set."),
    precision: str | None = typer.Option(None, help="fp32, tf32, fp16 or bf16; default: what the task says."),
) -> None:
    """Say whether PROGRAM computes what TASK computes, how fast, and how honestly.

    Exit code 0: correct; 1: not; 2: wrong use.
    """
    from stitchcuda.cli._session import open_session
    from stitchcuda.errors import StitchError
    from stitchcuda.program.files import load_program

    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    loaded = load_program(program)
    with open_session(task, target=target, root=root, precision=precision) as session:
        evaluation = session.evaluator.evaluate(loaded, "publish" if tier == "publish" else "screen")
    if as_json:
        typer.echo(evaluation.model_dump_json(indent=2))
    else:
        _show(evaluation)
    if not evaluation.passed:
        raise typer.Exit(1)


def _show(evaluation: Evaluation) -> None:
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.report.terminal import new_console

    console = new_console()
    colour = "green" if evaluation.passed else "red"
    console.print(f"[{colour} bold]{evaluation.status}[/]: {escape(evaluation.message)}", highlight=False)
    facts = [evaluation.precision, evaluation.tier, *evaluation.labels]
    if evaluation.census is not None:
        census = evaluation.census
        facts.append(
            f"{census.label}: {census.own:.0%} own, {census.library:.0%} library, {census.framework:.0%} framework"
        )
    if evaluation.sol is not None:
        facts.append(f"{evaluation.sol.fraction:.0%} of speed of light ({evaluation.sol.binds})")
    console.print("; ".join(facts), highlight=False)
    if evaluation.timings:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("ms a call")
        for name in ("median", "p10", "p90", "n", "speedup over it"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, timing in evaluation.timings.items():
            over = evaluation.speedup.get(name)
            figures = [f"{value * 1e3:.4f}" for value in (timing.median, timing.p10, timing.p90)]
            table.add_row(name, *figures, str(timing.n), f"{over:.2f}x" if over is not None else "")
        console.print(table)
        if "over_best" in evaluation.speedup:
            console.print(f"over the best stock option: {evaluation.speedup['over_best']:.2f}x", highlight=False)
    for finding in evaluation.findings:
        console.print(f"{finding.severity} {finding.rule}: {escape(finding.evidence)}", highlight=False)
    if evaluation.log and not evaluation.passed:
        console.print(escape(evaluation.log), highlight=False)
    console.print(f"confinement: {evaluation.provenance.get('confinement')}", style="dim", highlight=False)
