"""A sweep on the terminal: its heading, the summary and a line for each task."""

from __future__ import annotations

from stitchcuda.benchmark.folder import Sweep
from stitchcuda.benchmark.heading import heading, title, warnings
from stitchcuda.benchmark.metrics import summarise
from stitchcuda.benchmark.table import TASK_COLUMNS, summary_rows, task_row

SHOWN = ("task", "result", "over best stock", "over eager", "program", "best stock", "speed of light", "remarks")
"""Columns that a terminal has room for; all of them are in table.md."""


def print_sweep(sweep: Sweep) -> None:
    """Print it to stdout."""
    from rich.markup import escape
    from rich.table import Table

    from stitchcuda.report.terminal import new_console

    console = new_console()
    console.print(f"[bold]{escape(title(sweep))}[/]", highlight=False)
    for name, value in heading(sweep):
        console.print(f"[dim]{escape(name)}:[/] {escape(value)}", highlight=False, soft_wrap=True)
    for warning in warnings(sweep):
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False)
    places = [TASK_COLUMNS.index(name) for name in SHOWN]
    tasks = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in SHOWN:
        tasks.add_column(name, overflow="fold", justify="left" if name in ("task", "result", "remarks") else "right")
    for record in sweep.records:
        cells = task_row(record)
        style = "" if record.solved else "red" if record.scored else "dim"
        tasks.add_row(*(escape(cells[place]) for place in places), style=style)
    console.print(tasks)
    summary = summarise(sweep.records)
    if summary.main.tasks:
        columns = [summary.main, *summary.groups, *summary.apart]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("summary")
        for metrics in columns:
            table.add_column(metrics.name + (" (apart)" if metrics in summary.apart else ""), justify="right")
        for row in summary_rows(columns):
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for item, why in [*summary.unscored.items(), *sweep.open.items()]:
        console.print(f"[yellow]{escape(item)}[/]: {escape(why)}", highlight=False)
