"""``stitchcuda task ...``: what can be said about a task before anybody speeds it up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the group of verbs."""
    group = typer.Typer(no_args_is_help=True, help="Look at tasks themselves.")

    @group.callback()
    def about() -> None:
        """Look at tasks themselves."""

    group.command("audit")(audit)
    app.add_typer(group, name="task")


def audit(
    tasks: Annotated[
        list[str], typer.Argument(metavar="TASK...", help=".py files, kernelbench:LEVEL/ID, or kernelbench:LEVEL.")
    ],
    target: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="KernelBench's checkout or Parquet folder.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Result file (.json; a .md page beside it). What it holds already is not audited again."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="For trying trivial answers to one task, seconds.")] = 20.0,
    timeout: Annotated[float, typer.Option(min=1, help="Longest wall time for one task, seconds.")] = 180.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with an item for each task.")] = False,
) -> None:
    """Try trivial answers, and look for ill conditioning and dead work.

    A task that zeros, a constant, a copy of its input, an old answer or a
    sample of the work passes says nothing about a kernel: it is labelled
    non_discriminating and stays out of headline means.
    Exit status 1 when a task could not be audited.
    """
    import json
    from typing import Literal, cast, get_args

    from stitchcuda.errors import StitchError
    from stitchcuda.hardware.detect import detect
    from stitchcuda.task.audit import Auditor, expand, keep, known, load, page, save
    from stitchcuda.task.loader import load_task
    from stitchcuda.task.model import Precision

    if target not in ("auto", "cuda", "cpu"):
        raise StitchError(f"unknown target '{target}'; use auto, cuda or cpu")
    if precision is not None and precision not in get_args(Precision):
        raise StitchError(f"unknown precision class '{precision}'; use {', '.join(get_args(Precision))}")
    device = detect(cast('Literal["auto", "cuda", "cpu"]', target))
    kept: dict[str, Any] = load(out) if out is not None else {"items": []}
    shown: dict[str, Any] = {"items": []}
    with Auditor(device.target.kind, timeout_s=timeout) as auditor:
        for reference in expand(tasks, root):
            task = load_task(reference, target=device.target, root=root, precision=cast("Precision | None", precision))
            entry = known(kept, task)
            if entry is None:
                entry = auditor.audit(task, seconds=seconds)
                keep(kept, entry)
                if out is not None:
                    save(out, kept)
            keep(shown, entry)
            if not as_json:
                typer.echo(_line(entry), err=True)
    typer.echo(json.dumps(shown, indent=1) if as_json else page(shown))
    if any("error" in entry for entry in shown["items"]):
        raise typer.Exit(1)


def _line(entry: dict[str, Any]) -> str:
    """One task's result in a line, while others are still to come."""
    from stitchcuda.task.audit import labels

    if "error" in entry:
        return f"{entry['task']}: {entry['error']}"
    passing = ", ".join(entry["battery"]["ours"]) or "no trivial answer passes"
    marks = f" [{', '.join(labels(entry))}]" if labels(entry) else ""
    return f"{entry['task']}: {passing}{marks} ({entry['seconds']:.1f} s)"
