"""``stitchcuda baseline TASK...``: what the stock options of PyTorch give, in one precision class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

if TYPE_CHECKING:
    from stitchcuda.evaluation.baseline_cache import Shared
    from stitchcuda.evaluation.model import Tier, Timing
    from stitchcuda.hardware.model import Device
    from stitchcuda.task.model import Task


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("baseline")(baseline)


def baseline(
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK...", help=".py files, or kernelbench:LEVEL/ID.")
    ] = None,
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
    compile_seconds: Annotated[
        float, typer.Option(help="Time limit of each torch.compile option, max-autotune too; seconds.")
    ] = 180.0,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the timings to a JSON file to be shared.")
    ] = None,
    import_from: Annotated[
        Path | None,
        typer.Option(
            "--import", metavar="FILE", help="First take timings from such a file; refused from another device."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list, an object for each task.")] = False,
) -> None:
    """Measure every stock option on each task.

    Eager, a CUDA graph, torch.compile, channels-last for images, and eager with
    TF32 beside strict fp32 (another precision class: for comparison only). Each
    runs under the protocol that programs are judged by: fresh inputs on every
    call, outputs that outlive later calls. Exit status 1 when a task could not
    be measured.
    """
    import json

    from stitchcuda.errors import StitchError

    if tier not in ("screen", "publish"):
        raise StitchError(f"unknown tier '{tier}'; use screen or publish")
    if not compile_seconds > 0:
        raise StitchError(f"--compile-seconds {compile_seconds:g} is no time limit; give seconds above 0")
    if import_from is not None:
        _import(import_from, target, quiet=as_json)
    elif not tasks:
        raise StitchError("which task? Give a .py file or kernelbench:LEVEL/ID, or --import FILE")
    settings = {"max_autotune": max_autotune, "compile_timeout_s": compile_seconds, "channels_last": True}
    rows: list[dict[str, Any]] = []
    kept: list[tuple[Device, Shared]] = []
    failed = 0
    for reference in tasks or []:
        try:
            row, found = _measure(
                reference, target, root, precision, "publish" if tier == "publish" else "screen", settings
            )
            rows.append(row)
            kept += found
        except StitchError as error:
            if len(tasks or []) == 1:
                raise
            failed += 1
            rows.append({"task": reference, "error": str(error)})
        if not as_json:
            _show(rows[-1])
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    if export_to is not None and kept:
        from stitchcuda.evaluation.baseline_cache import export_book

        export_book(export_to, kept[0][0], [shared for _, shared in kept])
    if failed:
        raise typer.Exit(1)


def _import(path: Path, target: str, *, quiet: bool) -> None:
    """Take timings from a file into the cache."""
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.errors import StitchError
    from stitchcuda.evaluation.baseline_cache import import_book
    from stitchcuda.hardware.detect import detect

    if target not in ("auto", "cuda", "cpu"):
        raise StitchError(f"unknown target '{target}'; use auto, cuda or cpu")
    taken = import_book(path, data_folder(), detect(cast('Literal["auto", "cuda", "cpu"]', target)))
    if not quiet:
        typer.echo(f"{path}: baselines of {len(taken)} tasks taken")


def _measure(
    reference: str, target: str, root: Path | None, precision: str | None, tier: Tier, options: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[Device, Shared]]]:
    """One task's row (median seconds and spread for each option, and which is best), and what can be shared of it."""
    from stitchcuda.cli._session import open_session
    from stitchcuda.evaluation.settings import EvaluationSettings

    settings = EvaluationSettings.model_validate(options)
    with open_session(reference, target=target, root=root, precision=precision, settings=settings) as session:
        timings: dict[str, Timing] = dict(session.evaluator.baselines(tier=tier))
        task, device = session.task, session.device
        training = session.facts.training
        shared = [(device, _shared(task, timings))]
    medians = {name: timing.median for name, timing in timings.items() if timing.n > 0}
    if task.precision == "fp32" and task.target.kind == "cuda":
        with open_session(reference, target=target, root=root, precision="tf32", settings=settings) as session:
            relaxed = session.evaluator.stocks.baselines(tier, keep=False, only=("eager",))
            shared.append((device, _shared(session.task, relaxed)))
        note = "precision class tf32: not a baseline of fp32 programs"
        timings["eager_tf32"] = relaxed["eager"].model_copy(update={"note": relaxed["eager"].note or note})
    row = {
        "task": task.name,
        "origin": task.origin,
        "precision": task.precision,
        "mode": "train" if training else "eval",
        "device": device.name,
        "tier": tier,
        "timings": {name: timing.model_dump() for name, timing in timings.items()},
        "best": min(medians, key=lambda name: medians[name], default=None),
    }
    return row, shared


def _shared(task: Task, timings: dict[str, Timing]) -> Shared:
    from stitchcuda.evaluation.baseline_cache import Shared

    return Shared(
        task=task.name, origin=task.origin, digest=task.digest, precision=task.precision, timings=dict(timings)
    )


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
