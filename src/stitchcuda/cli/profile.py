"""``stitchcuda profile TASK [PROGRAM]``: where the time of a reference, or of a Program, goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile")(profile)


def profile(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A .py file, or kernelbench:LEVEL/ID.")],
    program: Annotated[
        Path | None, typer.Argument(metavar="PROGRAM", help="A .py file or a folder with program.py; none: the task.")
    ] = None,
    target: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="KernelBench's checkout or Parquet folder.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16; default: the task's own, else fp32.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="Kernels shown.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print the Profile as one JSON object.")] = False,
) -> None:
    """Show where the time of a task, or of a program for it, goes, and what binds it.

    One traced pass in the confined runner: busy time, gaps, copies,
    the longest kernels (on cpu: operators), the bottleneck with its
    evidence, and the change with the largest predicted gain.
    """
    from stitchcuda.cli._session import open_session
    from stitchcuda.profiling.profiler import profile as summarise
    from stitchcuda.program.files import load_program

    written = load_program(program) if program is not None else None
    with open_session(task, target=target, root=root, precision=precision) as session:
        found = summarise(
            session.evaluator.trace(written),
            subject="reference" if written is None else "program",
            device=session.device,
            facts=session.facts,
            precision=session.task.precision,
            flops=session.evaluator.plan["work"]["flops"],
        )
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    from stitchcuda.profiling.table import show
    from stitchcuda.report.terminal import new_console

    show(found, console=new_console(), title=f"{task}" + (f" with {program}" if program is not None else ""), top=top)
