"""``stitchcuda baseline TASK...``: what the stock options of PyTorch give, in one precision class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from stitchcuda.evaluation.model import Tier, Timing


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("baseline")(baseline)


def baseline(
    tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help=".py files, or kernelbench:LEVEL/ID.")],
    target: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="KernelBench's checkout or Parquet folder.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
    ] = None,
    tier: Annotated[
        str, typer.Option(help="screen (cached) or publish (measured anew in fresh processes).")
    ] = "screen",
    max_autotune: Annotated[
        bool,
        typer.Option("--max-autotune", help="Also measure torch.compile(mode='max-autotune'), which takes minutes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list, an object for each task.")] = False,
) -> None:
    """Measure every stock option (eager, CUDA graph, torch.compile) on each task.

    Each runs under the protocol that programs are judged by: fresh inputs
    on every call, outputs that outlive later calls, one precision class.
    Exit status 1 when a task could not be measured.
    """
    import json

    from stitchcuda.errors import StitchError

    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    rows: list[dict[str, Any]] = []
    failed = 0
    for reference in tasks:
        try:
            rows.append(
                _measure(reference, target, root, precision, "publish" if tier == "publish" else "screen", max_autotune)
            )
        except StitchError as error:
            if len(tasks) == 1:
                raise
            failed += 1
            rows.append({"task": reference, "error": str(error)})
        if not as_json:
            _show(rows[-1])
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    if failed:
        raise typer.Exit(1)


def _measure(
    reference: str, target: str, root: Path | None, precision: str | None, tier: Tier, max_autotune: bool
) -> dict[str, Any]:
    """One task's row: median seconds and spread for each option, and which is best."""
    from stitchcuda.cli._session import open_session
    from stitchcuda.evaluation.settings import EvaluationSettings

    settings = EvaluationSettings(max_autotune=max_autotune)
    with open_session(reference, target=target, root=root, precision=precision, settings=settings) as session:
        timings: dict[str, Timing] = session.evaluator.baselines(tier=tier)
    medians = {name: timing.median for name, timing in timings.items() if timing.n > 0}
    return {
        "task": session.task.name,
        "origin": session.task.origin,
        "precision": session.task.precision,
        "mode": "train" if session.facts.training else "eval",
        "device": session.device.name,
        "tier": tier,
        "timings": {name: timing.model_dump() for name, timing in timings.items()},
        "best": min(medians, key=lambda name: medians[name], default=None),
    }


def _show(row: dict[str, Any]) -> None:
    """A table for one task."""
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.report.terminal import new_console

    console = new_console()
    if "error" in row:
        console.print(f"[bold]{escape(row['task'])}[/]: [red]{escape(row['error'])}[/]", highlight=False)
        return
    console.print(
        f"[bold]{escape(row['task'])}[/]: {row['precision']}, {row['mode']}, {escape(row['device'])}, {row['tier']}",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("option", no_wrap=True)
    for name in ("median", "p10", "p90", "over eager"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    eager = (row["timings"].get("eager") or {}).get("median")
    for name, timing in row["timings"].items():
        if timing["n"] == 0:
            table.add_row(name, "-", "", "", "", escape(timing["note"]))
            continue
        times = [f"{timing[key] * 1e3:.4g} ms" for key in ("median", "p10", "p90")]
        over = f"{eager / timing['median']:.2f}x" if eager else ""
        style = "bold green" if name == row["best"] else ""
        table.add_row(name, *times, over, escape(timing["note"]), style=style)
    console.print(table)
    console.print()
