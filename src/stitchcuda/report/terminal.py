"""The terminal's view of a run: a live screen on a terminal, plain lines elsewhere, and the summary at the end.

Listens to ``workflow.events``; decides nothing and never raises into the workflow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stitchcuda.agents.roles import Attempt
from stitchcuda.profiling.model import Profile
from stitchcuda.workflow import events
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.result import Result

if TYPE_CHECKING:
    from stitchcuda.report.scorecard import Scorecard

QUIET = frozenset({"base", "select", "turns", "report", "approve"})
"""States that pass in no time and get no line of their own."""
ROWS = 12
"""Attempts on the live screen; older ones scroll out."""


LONG_IDEA = 20
"""Characters of an idea and its step from which on a table may have to cut it."""
WIDTH = 160
"""Columns of a table that is not printed on a terminal, where nothing says how many there are."""


def new_console(*, stderr: bool = False) -> Console:
    """A console that shows what it is given: names such as ``openai:x:`` are no emoji, and a pipe is wide."""
    console = Console(stderr=stderr, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDTH
    return console


def wants_live(console: Console) -> bool:
    """A live screen makes sense: a terminal that can move its cursor, and colours are not refused."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def seconds_text(seconds: float) -> str:
    """A duration in a unit that suits it."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 60:.1f} min"


def times(value: float | None) -> str:
    """A speedup."""
    return "" if value is None else f"{value:.2f}x"


def spent_text(spent: Spent, limits: Limits | None, *, paid: bool) -> str:
    """What is used, and of what, on one line."""

    def of(used: str, limit: str, bounded: float) -> str:
        return f"{used} of {limit}" if bounded else used

    limits = limits or Limits(iterations=0, seconds=0, tokens=0, usd=0)
    parts = [
        of(f"{spent.iterations}", f"{limits.iterations}", limits.iterations)
        + (" candidate" if spent.iterations == 1 and not limits.iterations else " candidates"),
        of(seconds_text(spent.seconds), seconds_text(limits.seconds), limits.seconds),
    ]
    if paid or spent.requests:
        tokens = spent.input_tokens + spent.output_tokens
        parts.append(f"{spent.requests} requests")
        parts.append(of(f"{tokens:,}", f"{limits.tokens:,}", limits.tokens) + " tokens")
        unknown = spent.requests > 0 and spent.usd == 0
        parts.append("price unknown" if unknown else of(f"${spent.usd:.2f}", f"${limits.usd:.2f}", limits.usd))
    return ", ".join(parts)


def attempts_table(attempts: list[Attempt], best: int | None, cards: Mapping[int, Scorecard] | None = None) -> Table:
    """What was tried: one row a program; with ``cards``, their marks and rewards too."""
    names = [a.idea if a.idea == a.step else f"{a.idea} / {a.step}" for a in attempts]
    # Only a table that takes the whole width cuts its ideas before its figures.
    whole = max((len(name) for name in names), default=0) > LONG_IDEA
    table = Table(box=None, pad_edge=False, header_style="bold", expand=whole)
    table.add_column("program", justify="right", no_wrap=True)
    table.add_column("idea / step", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("status", no_wrap=True)
    for title in ("over eager", "over best stock", *(("marks of 20", "reward") if cards else ())):
        table.add_column(title, justify="right", no_wrap=True)
    for attempt, name in zip(attempts, names, strict=True):
        mark = " *" if attempt.number == best else ""
        colour = "green" if attempt.status == "correct" else "red"
        table.add_row(
            f"{attempt.number:03d}{mark}",
            escape(name),
            Text(attempt.status, style=colour),
            times(attempt.speedup),
            times(attempt.over_best),
            *(_marked(cards.get(attempt.number)) if cards else ()),
        )
    return table


def _marked(card: Scorecard | None) -> tuple[str, str]:
    """The last two cells of a program's row."""
    if card is None:
        return "", ""
    return f"{card.marks.total:g}", f"{card.reward.value:.2f}" if card.reward is not None else ""


def scorecard_lines(card: Scorecard) -> list[str]:
    """A scorecard as text: four marks, each with what was seen, and the reward with its parts."""
    from stitchcuda.report.scorecard import TITLES, formula_text
    from stitchcuda.reward.model import DIMENSIONS

    lines = [f"scorecard         program {card.number:03d}: {card.marks.total:g} of 20, by {card.marks.source}"]
    for name in DIMENSIONS:
        given = card.marks.marks[name]
        reasons = given.reasons or ["nothing was seen"]
        lines.append(f"  {TITLES[name]:<20}{given.score:>3g}  {reasons[0]}")
        lines += [f"  {'':<20}     {reason}" for reason in reasons[1:]]
    lines.append(f"  {formula_text(card.reward) if card.reward is not None else f'no reward: {card.problem}'}")
    return lines


def profile_lines(profile: Profile, title: str, rows: int = 5) -> list[str]:
    """A profile in a few lines of text."""
    line = profile.timeline
    lines = [
        f"{title}: {profile.bottleneck}. {profile.evidence}",
        f"  wall {seconds_text(line.wall_seconds)}, busy {seconds_text(line.busy_seconds)}, "
        f"gaps {seconds_text(line.gap_seconds)}, copies {seconds_text(line.copy_seconds)}, {line.launches} launches",
    ]
    lines += [
        f"  {k.share:6.1%}  {seconds_text(k.seconds):>9}  {k.calls:4d} x  {k.name[:90]}" for k in profile.kernels[:rows]
    ]
    if profile.suggestion:
        lines.append(f"  {profile.suggestion}")
    return lines


def result_lines(result: Result, profile: Profile | None) -> list[str]:
    """The summary: what was found, by how much, and where it is."""
    lines = ["", f"status            {result.status}", f"                  {result.message}"]
    if result.number is not None:
        stock = {n: s for n, s in result.seconds.items() if n != "program"}
        lines.append(f"over best stock   {times(result.over_best) or 'not measured'}")
        for name, value in stock.items():
            lines.append(f"  over {name:<24}{times(result.speedup.get(name)):>8}   {seconds_text(value):>9}")
        if "program" in result.seconds:
            lines.append(f"program           {seconds_text(result.seconds['program'])}, tier {result.tier}")
        if result.census is not None:
            lines.append(
                f"own kernels       {result.census.own:.0%} of the time ({result.census.label}); "
                f"libraries {result.census.library:.0%}, framework {result.census.framework:.0%}"
            )
        if result.sol is not None:
            lines.append(
                f"speed of light    {result.sol.fraction:.0%} of the {result.sol.binds} bound "
                f"({seconds_text(result.sol.bound_seconds)})"
            )
    elif profile is not None:
        lines += profile_lines(profile, "reference")
    lines.append(f"precision class   {result.precision}, on {result.device}")
    if result.labels:
        lines.append(f"labels            {', '.join(result.labels)}")
    for finding in result.findings:
        lines.append(f"finding           {finding.severity}: {finding.rule}: {finding.evidence}")
    if result.target_speedup is not None:
        met = "met" if result.target_met else "not met"
        lines.append(f"target            {result.target_speedup:g}x over the best stock option: {met}")
    lines.append(f"mind              {result.mind}; {spent_text(result.spent, None, paid=result.spent.requests > 0)}")
    if result.author not in ("", result.mind):
        lines.append(f"written by        {result.author}")
    if result.stopped and result.status != "no_rewrite":  # which says why already
        lines.append(f"search ended      {result.stopped}")
    if result.best:
        lines.append(f"best program      {result.best}")
    lines.append(f"run               {result.run}")
    return lines


def earlier_line(result: Result) -> str:
    """How a run that goes on had ended before, as one line."""
    return f"earlier result, before it was given more: {result.status}. {result.message}"


class TerminalView:
    """An event sink for people. Use as a context manager; ``live`` False prints plain lines."""

    def __init__(self, console: Console, *, live: bool, limits: Limits, paid: bool) -> None:
        self.console = console
        self.limits = limits
        self.paid = paid
        self._begun = time.monotonic()
        self._title = ""
        self._state = "starting"
        self._bottleneck = ""
        self._stock: dict[str, float] = {}
        self._ideas: list[str] = []
        self._attempts: list[Attempt] = []
        self._best: int | None = None
        self._spent = Spent()
        self._notice = ""
        self._spinner = Spinner("dots")
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._screen, transient=True) if live else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            if self._attempts:
                self.console.print(attempts_table(self._attempts, self._best))

    def emit(self, event: events.Event) -> None:
        """Take in one event."""
        match event:
            case events.RunStarted():
                again = ", resumed" if event.resumed else ""
                self._title = f"{event.task.name} ({event.task.precision}) by {event.mind}{again}"
                self._line(f"{self._title}: {event.folder}")
            case events.DeviceFound():
                self._title += f" on {event.device.name}"
                self._line(f"device: {event.device.name} ({event.device.target.arch})")
            case events.StateEntered():
                self._state = event.detail
                if not event.replayed and event.state not in QUIET:
                    self._line(f"{event.detail} ...")
            case events.BaselinesMeasured():
                self._stock = event.seconds
                stock = ", ".join(f"{name} {seconds_text(value)}" for name, value in event.seconds.items())
                self._line(f"stock options: {stock}")
            case events.ProfileTaken():
                name = "reference" if event.number is None else f"program {event.number:03d}"
                self._bottleneck = f"{name}: {event.profile.bottleneck}. {event.profile.evidence}"
                self._line(self._bottleneck)
            case events.PlanMade():
                self._ideas = event.ideas
                self._line(f"plan: {event.summary}")
                for idea in event.ideas:
                    self._line(f"  - {idea}")
            case events.AttemptFinished():
                self._attempted(event)
            case events.SpentSoFar():
                self._spent = event.spent
            case events.Notice():
                self._notice = event.text
                self._line(event.text)
            case events.RunFinished():
                self._state = "done"

    def _attempted(self, event: events.AttemptFinished) -> None:
        attempt = event.attempt
        self._attempts.append(attempt)
        if event.best:
            self._best = attempt.number
        figures = f", {times(attempt.speedup)} eager" if attempt.speedup is not None else ""
        if attempt.over_best is not None:
            figures += f", {times(attempt.over_best)} best stock"
        why = "" if attempt.status == "correct" else f": {attempt.diagnosis or event.message}"
        lead = ", the best so far" if event.best else ""
        self._line(f"program {attempt.number:03d} {attempt.status}{figures}{lead}{why}")

    def _line(self, text: str) -> None:
        if self._live is None:
            stamp = f"[{time.monotonic() - self._begun:7.1f} s] "
            self.console.print(stamp + text, markup=False, highlight=False, soft_wrap=True)
            self.console.file.flush()

    def _screen(self) -> RenderableType:
        self._spinner.update(text=Text(self._state, overflow="ellipsis", no_wrap=True))
        rows: list[RenderableType] = [Text(self._title, style="bold"), self._spinner]
        if self._stock:
            rows.append(Text("stock: " + ", ".join(f"{n} {seconds_text(s)}" for n, s in self._stock.items())))
        if self._bottleneck:
            rows.append(Text(self._bottleneck, overflow="ellipsis", no_wrap=True, style="dim"))
        if self._ideas:
            rows.append(Text("plan: " + "; ".join(self._ideas), overflow="ellipsis", no_wrap=True))
        if self._attempts:
            rows.append(attempts_table(self._attempts[-ROWS:], self._best))
        if self._notice:
            rows.append(Text(self._notice, style="yellow"))
        rows.append(Text(f"used: {spent_text(self._spent, self.limits, paid=self.paid)}", style="dim"))
        return Group(*rows)
