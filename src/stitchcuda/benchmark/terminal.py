"""A sweep on the terminal: its heading, the summary and a line for each task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stitchcuda.benchmark.folder import Sweep
from stitchcuda.benchmark.heading import heading, title, warnings
from stitchcuda.benchmark.metrics import summarise
from stitchcuda.benchmark.table import TASK_COLUMNS, columns_of, speedup_rows, summary_rows, task_row

if TYPE_CHECKING:
    from rich.console import Console

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
    columns = columns_of(summary)
    if columns:
        _print(console, ["summary", *(name for name, _ in columns)], summary_rows([m for _, m in columns]))
    if summary.main.speedups:
        head, rows = speedup_rows(summary.main)
        _print(console, ["speedup over", *head[1:]], rows)
    for item, why in [*summary.unscored.items(), *sweep.open.items()]:
        console.print(f"[yellow]{escape(item)}[/]: {escape(why)}", highlight=False)


def _print(console: Console, head: list[str], rows: list[list[str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print()
    console.print(table)
