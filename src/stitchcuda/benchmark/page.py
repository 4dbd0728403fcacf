"""A sweep as one HTML page that needs nothing else: heading, summary, distribution, and every task with a link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from stitchcuda.benchmark.folder import Sweep
from stitchcuda.benchmark.heading import heading, title, warnings
from stitchcuda.benchmark.metrics import Summary, summarise
from stitchcuda.benchmark.model import Record
from stitchcuda.benchmark.plot import speedup_svg
from stitchcuda.benchmark.table import (
    READING,
    TASK_COLUMNS,
    columns_of,
    share,
    speedup_rows,
    summary_rows,
    task_row,
    times,
)

STYLE = """
:root { --text: #1d2129; --faint: #68707d; --line: #d9dde3; --page: #fff; --gain: #2f7d4f; --loss: #b3541e;
  --mark: #1f5fa8; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ec; --faint: #9aa3b0; --line: #3a4048; --page: #16191d;
  --gain: #58b37f; --loss: #e08a52; --mark: #7fb2ea; --warn: #e0b050; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
  max-width: 1240px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .6rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
a { color: var(--mark); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; margin: 0; font-size: .9rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
.warning { border-left: 4px solid var(--warn); padding: .2rem .8rem; margin: .8rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem 2.4rem; margin: 1.4rem 0 0; padding: 0; list-style: none; }
.facts span { color: var(--faint); font-size: .85rem; } .facts b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--faint); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
td.wide { white-space: normal; text-align: left; min-width: 14rem; }
.scroll { overflow-x: auto; } .faint { color: var(--faint); font-size: .85rem; }
svg { width: 100%; height: auto; display: block; min-width: 620px; max-width: 960px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); } svg .tick, svg .failure { fill: var(--faint); }
.gain { fill: var(--gain); } .loss { fill: var(--loss); } .grid { stroke: var(--line); }
.one { stroke: var(--text); } .whisker { stroke: var(--text); stroke-width: 1.5; }
"""

WIDE = ("result", "programs", "remarks")


def page(sweep: Sweep) -> str:
    """The whole page; links to run folders are relative to the sweep's."""
    summary = summarise(sweep.records)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title(sweep))}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title(sweep))}</h1>",
        "<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in heading(sweep)) + "</dl>",
        *(f'<p class="warning">{escape(warning)}</p>' for warning in warnings(sweep)),
    ]
    if summary.main.tasks:
        parts += [_facts(summary), "<h2>Speedup over the best stock option, task by task</h2>"]
        parts += [_plot(record for record in sweep.records if not summary.places.get(record.task))]
    if summary.apart:
        parts += ["<h2>Tasks that are counted apart</h2>"]
        parts += [_plot(record for record in sweep.records if summary.places.get(record.task))]
    if summary.places:
        parts += ["<h2>Summary</h2>", _summary(summary)]
    parts += ["<h2>Tasks</h2>", _tasks(sweep.records)]
    if summary.unscored:
        parts += ["<h2>Not counted</h2>", _list(f"{item}: {why}" for item, why in summary.unscored.items())]
    if sweep.open:
        parts += ["<h2>Not done</h2>", _list(f"{item}: {why}" for item, why in sweep.open.items())]
    parts += ["<h2>How to read this</h2>", _list(line.replace("*", "") for line in READING), "</body></html>"]
    return "\n".join(parts) + "\n"


def _plot(records: Iterable[Record]) -> str:
    return f'<div class="scroll">{speedup_svg(list(records))}</div>'


def _facts(summary: Summary) -> str:
    main = summary.main
    told = [("success", share(main.success))]
    for found in main.speedups:
        if found.over == "over_best":
            told += [
                ("fast_1 over best stock", share(found.fast["1"])),
                ("mean over best stock, failures as 0", times(found.mean)),
                ("geometric mean over best stock, solved", times(found.solved_geometric)),
            ]
    told += [("caught cheating", share(main.hack))]
    items = "".join(f"<li><span>{escape(n)}</span><b>{escape(v)}</b></li>" for n, v in told if v)
    return f'<ul class="facts">{items}</ul>'


def _summary(summary: Summary) -> str:
    columns = columns_of(summary)
    rows = summary_rows([metrics for _, metrics in columns])
    parts = [_table(["", *(name for name, _ in columns)], [[escape(cell) for cell in row] for row in rows])]
    for name, metrics in columns:
        if metrics.speedups:
            head, rows = speedup_rows(metrics)
            parts.append(f"<h2>Speedups: {escape(name)}</h2>")
            parts.append(_table(head, [[escape(cell) for cell in row] for row in rows]))
    return "\n".join(parts)


def _tasks(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        cells = [escape(cell) for cell in task_row(record)]
        if record.run:
            cells[0] = f'<a href="{escape(_link(record), quote=True)}">{cells[0]}</a>'
        rows.append(cells)
    return _table(list(TASK_COLUMNS), rows)


def _link(record: Record) -> str:
    """A run's own page; what a scored program's evaluation said."""
    scored = record.run == f"items/{record.item}"
    return f"{record.run}/evaluation.json" if scored else f"{record.run}/report.html"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    opening = ['<td class="wide">' if name in WIDE else "<td>" for name in head]
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"{tag}{cell}</td>" for tag, cell in zip(opening, row, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
