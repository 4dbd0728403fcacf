"""``stitchcuda init MODULE:CLASS``: write a task file for a model in the user's own package."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init")(init)


def init(
    reference: str = typer.Argument(
        metavar="MODULE:CLASS", help="mypackage.models:Decoder, or path/to/file.py:Decoder."
    ),
    out: Path | None = typer.Option(None, help="File to write; default: the class's name in the current folder."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file if it is there."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as one JSON object."),
) -> None:
    """Write a task file for a model of your own, try it, and say what is left to fill in.

    Exit code 0: the task runs; 1: it was written but does not run yet; 2: wrong use.
    """
    import json
    import re

    from stitchcuda.errors import TaskError
    from stitchcuda.task.inspect import inspect_task
    from stitchcuda.task.loader import load_task
    from stitchcuda.task.model import Target
    from stitchcuda.task.scaffold import scaffold

    made = scaffold(reference)
    name = reference.rpartition(":")[2]
    path = out or Path(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + "_task.py")
    if path.suffix != ".py":
        raise TaskError(f"--out {path} must end in .py")
    if path.exists() and not force:
        raise TaskError(f"{path} exists; name another file with --out, or overwrite it with --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.source, encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path} cannot be written: {error}") from None
    problem = ""
    facts = None
    try:
        facts = inspect_task(load_task(str(path), target=Target(kind="cpu", arch="native")))
    except TaskError as error:
        problem = str(error)
    if as_json:
        outcome = {"path": str(path), "runs": facts is not None, "left": made.left, "problem": problem}
        typer.echo(json.dumps(outcome | {"facts": facts.model_dump() if facts else None}, indent=2))
    else:
        typer.echo(f"wrote {path}")
        for sentence in made.left:
            typer.echo(f"  - {sentence}")
        if facts is None:
            typer.echo(f"it does not run yet: {problem}")
        else:
            milliseconds = facts.eager_seconds * 1e3
            typer.echo(f"it runs: {facts.parameters:,} parameters, {milliseconds:.1f} ms a call on this CPU, untuned")
            typer.echo(f"next: stitchcuda optimize {path}")
    if facts is None:
        raise typer.Exit(1)
