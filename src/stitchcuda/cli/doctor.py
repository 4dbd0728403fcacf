"""``stitchcuda doctor``: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="Print the checks as one JSON object.")) -> None:
    """Look at this machine: compilers, GPU, profilers, confinement, keys, disk. Changes nothing.

    Exit code 0: StitchCUDA can work here; 1: something that it needs is missing.
    """
    import dataclasses
    import json

    from stitchcuda.cli._checks import run_checks

    checks = run_checks()
    missing = [check for check in checks if check.state == "missing"]
    if as_json:
        typer.echo(json.dumps({"ok": not missing, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        from rich.markup import escape
        from rich.table import Table

        from stitchcuda.report.terminal import new_console

        table = Table(box=None, pad_edge=False)
        for heading in ("", "what", "found", "what to do"):
            table.add_column(heading, overflow="fold")
        marks = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "optional": "[yellow]optional[/]"}
        for check in checks:
            table.add_row(marks[check.state], check.name, escape(check.found), escape(check.fix))
        new_console().print(table)
        verdict = "StitchCUDA can work here." if not missing else f"To repair: {', '.join(c.name for c in missing)}."
        typer.echo(verdict)
    if missing:
        raise typer.Exit(1)
