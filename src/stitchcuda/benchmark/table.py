"""A sweep as a Markdown table: the heading that the numbers rest on, the summary, and every task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stitchcuda.benchmark.folder import Sweep
from stitchcuda.benchmark.heading import STOCK, heading, title, warnings
from stitchcuda.benchmark.metrics import OVER, Metrics, Number, Summary, summarise
from stitchcuda.benchmark.model import Record

READING = (
    "Speedup is the stock option's median over the program's, per call with fresh inputs and checked outputs; "
    "*best stock* is the fastest stock option of the same precision class, measured beside the program.",
    "*failures as 0*: a task without a correct program counts as 0. *solved*: it is left out. fast_p is the share of "
    "all tasks with a correct program faster than p times the baseline.",
    "Brackets are 95 % intervals over tasks: percentile bootstrap (10,000 draws, fixed seed), for shares of tasks that "
    "were run once Wilson's score interval. Runs of one task are averaged first. A task's own bracket is that of its "
    "medians.",
    "*caught cheating*: a program was turned down as dishonest or as faster than the hardware can be. *partial hack*: "
    "the accepted program has 2 or 3 of 5 for honesty by evidence (it leaves the work to stock kernels, or only looks "
    "like work).",
    "device seconds are those in which a device was measured on; wall seconds those of a whole run.",
)


def markdown(sweep: Sweep) -> str:
    """The whole table."""
    summary = summarise(sweep.records)
    parts = [f"# {title(sweep)}", ""]
    parts += [f"- {name}: {value}" for name, value in heading(sweep)]
    parts += ["", *(f"**{warning}**\n" for warning in warnings(sweep))]
    if summary.places:
        parts += ["", *_summary(summary)]
    parts += ["", "## Tasks", "", *grid(TASK_COLUMNS, [task_row(record) for record in sweep.records])]
    parts += _options(sweep.records)
    if summary.unscored:
        parts += ["", "## Not counted", "", *(f"- {item}: {why}" for item, why in summary.unscored.items())]
    if sweep.open:
        parts += ["", "## Not done", "", *(f"- {item}: {why}" for item, why in sweep.open.items())]
    parts += ["", "## How to read this", "", *(f"- {line}" for line in READING)]
    return "\n".join(parts) + "\n"


def _summary(summary: Summary) -> list[str]:
    columns = columns_of(summary)
    lines = ["## Summary", "", *grid(["", *(name for name, _ in columns)], summary_rows([m for _, m in columns]))]
    for name, metrics in columns:
        if metrics.speedups:
            lines += ["", f"## Speedups: {name}", "", *grid(*speedup_rows(metrics))]
    return lines


def _options(records: Sequence[Record]) -> list[str]:
    """Every stock option's time beside the program's; nothing where no time was taken."""
    names = [name for name in STOCK if any(name in record.seconds for record in records)]
    if not names:
        return []
    head = ["task", "class", "program", *(STOCK[name] for name in names)]
    rows = [
        [task_row(r)[0], r.precision or "", *(duration(r.seconds.get(name)) for name in ("program", *names))]
        for r in records
    ]
    return ["", "## Times: the program and every stock option", "", *grid(head, rows)]


def columns_of(summary: Summary) -> list[tuple[str, Metrics]]:
    """The groups with what they are called: those that count, then those apart."""
    kept = [summary.main, *summary.groups]
    return [(m.name, m) for m in kept if m.tasks] + [(f"{m.name} (apart)", m) for m in summary.apart if m.tasks]


def summary_rows(columns: Sequence[Metrics]) -> list[list[str]]:
    """Name and a cell for each group, row by row; rows that are empty everywhere are left out."""
    cells: dict[str, Callable[[Metrics], str]] = {
        "tasks (runs)": lambda m: f"{m.tasks} ({m.runs})",
        "success": lambda m: share(m.success),
        "faster than the best stock option (fast_1)": lambda m: share(_headline(m, "1")),
        "mean over best stock, failures as 0": lambda m: times(_headline(m, "mean")),
        "geometric mean over best stock, solved": lambda m: times(_headline(m, "solved_geometric")),
        "fraction of speed of light, solved": lambda m: share(m.sol),
        "caught cheating, tasks": lambda m: share(m.hack),
        "caught cheating, programs": lambda m: "" if m.hack_programs is None else f"{m.hack_programs:.1%}",
        "partial hack, tasks": lambda m: share(m.partial_hack),
        "tokens a run": lambda m: "" if m.tokens is None else f"{m.tokens:,.0f}",
        "dollars a run": lambda m: "price unknown" if m.usd is None else f"${m.usd:.4f}",
        "wall seconds a run": lambda m: "" if m.wall_seconds is None else f"{m.wall_seconds:,.1f}",
        "device seconds a run": lambda m: "" if m.device_seconds is None else f"{m.device_seconds:,.1f}",
    }
    rows = [[name, *(cell(metrics) for metrics in columns)] for name, cell in cells.items()]
    return [row for row in rows if any(row[1:])]


def speedup_rows(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """Head and rows of one group's speedups: a column for each baseline."""
    rows = [
        [f"fast_{bar}", *(share(found.fast[bar]) for found in metrics.speedups)] for bar in metrics.speedups[0].fast
    ]
    for field, name in FIGURES.items():
        values = [getattr(found, field) for found in metrics.speedups]
        rows.append([name, *(times(value) for value in values)])
    if any(found.missing for found in metrics.speedups):
        rows.append(["tasks without this baseline, left out", *(str(found.missing) for found in metrics.speedups)])
    return ["over", *(OVER[found.over] for found in metrics.speedups)], rows


FIGURES = {
    "mean": "mean, failures as 0",
    "solved_mean": "mean, solved",
    "geometric": "geometric mean, failures as 0",
    "solved_geometric": "geometric mean, solved",
    "median": "median, failures as 0",
    "solved_median": "median, solved",
}
"""Fields of ``Speedups`` with what they are called."""


def _headline(metrics: Metrics, field: str) -> Number | None:
    found = next((s for s in metrics.speedups if s.over == "over_best"), None)
    if found is None:
        return None
    value = found.fast.get(field) or getattr(found, field, None)
    return value if isinstance(value, Number) else None


TASK_COLUMNS = (
    "task",
    "result",
    "over best stock",
    "over eager",
    "over torch.compile",
    "program",
    "best stock",
    "speed of light",
    "kernels",
    "programs",
    "tokens",
    "dollars",
    "wall s",
    "remarks",
)


def task_row(record: Record) -> list[str]:
    """The cells of ``TASK_COLUMNS``."""
    program = record.seconds.get("program")
    stock = {name: seconds for name, seconds in record.seconds.items() if name != "program"}
    best = min(stock, key=lambda name: stock[name], default="")
    over_best = _over(record, "over_best")
    if over_best and record.interval:
        over_best += f" [{record.interval[0]:.2f}, {record.interval[1]:.2f}]"
    tokens = record.input_tokens + record.output_tokens
    return [
        record.task + (f" #{record.seed}" if record.seed else ""),
        record.status if record.solved or not record.message else f"{record.status}: {short(record.message)}",
        over_best,
        _over(record, "eager"),
        _over(record, "compile"),
        duration(program),
        f"{STOCK.get(best, best)} {duration(stock[best])}" if best else "",
        f"{record.sol:.0%}" if record.sol is not None else "",
        f"{record.census} ({record.own:.0%} own)" if record.census and record.own is not None else record.census,
        ", ".join(f"{count} {status}" for status, count in sorted(record.programs.items())),
        f"{tokens:,}",
        "unknown" if record.usd is None else f"{record.usd:.4f}",
        f"{record.wall_seconds:,.1f}",
        ", ".join([*record.labels, *(f"flag {rule}" for rule in record.flags), *_partial(record)]),
    ]


def _partial(record: Record) -> list[str]:
    return ["partial hack"] if record.partial_hack else []


def _over(record: Record, name: str) -> str:
    value = record.speedup.get(name)
    return f"{value:.2f}x" if value is not None and record.solved else ""


def short(text: str, most: int = 90) -> str:
    """One line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


def share(number: Number | None) -> str:
    """A share with its interval, in percent."""
    if number is None:
        return ""
    ends = f" [{number.low:.0%}, {number.high:.0%}]" if number.low is not None and number.high is not None else ""
    return f"{number.value:.0%}{ends}"


def times(number: Number | None) -> str:
    """A speedup with its interval."""
    if number is None:
        return ""
    ends = f" [{number.low:.2f}, {number.high:.2f}]" if number.low is not None and number.high is not None else ""
    return f"{number.value:.2f}x{ends}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]
