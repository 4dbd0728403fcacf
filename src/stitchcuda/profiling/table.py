"""A Profile for people: a table on the terminal. The data itself is ``profiling.model``."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stitchcuda.profiling.model import KernelTime, Profile
from stitchcuda.profiling.rules import milliseconds

BAR = 24
"""Characters of a full bar."""


def show(profile: Profile, *, title: str = "", top: int = 12, console: Console | None = None) -> None:
    """Print timeline, longest kernels, bottleneck and suggestion; plain text where there is no terminal."""
    console = console or Console()
    line = profile.timeline
    console.print(f"[bold]{escape(title or profile.subject)}[/]: {profile.subject}, traced by {profile.source}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, seconds in (
        ("wall", line.wall_seconds),
        ("busy", line.busy_seconds),
        ("gaps", line.gap_seconds),
        ("copies", line.copy_seconds),
    ):
        share = min(seconds / line.wall_seconds, 1.0) if line.wall_seconds > 0 else 0.0
        table.add_row(name, milliseconds(seconds), f"{share:.0%}", "█" * round(share * BAR))
    console.print(table)
    console.print(f"{line.launches} kernels or operators a call")
    console.print()
    console.print(_kernels(profile.kernels[:top]))
    left = len(profile.kernels) - top
    if left > 0:
        console.print(f"[dim]{left} more, {sum(k.share for k in profile.kernels[top:]):.1%} of the busy time[/]")
    console.print()
    console.print(f"[bold]{profile.bottleneck}[/]: {escape(profile.evidence)}", highlight=False)
    if profile.suggestion:
        console.print(f"[bold]next[/]: {escape(profile.suggestion)}", highlight=False)


def _kernels(kernels: list[KernelTime]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("time", "share", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("origin", no_wrap=True)
    for kernel in kernels:
        name = escape(short_name(kernel.name))
        if kernel.operator and kernel.operator != kernel.name:
            name += f" [dim]{escape(kernel.operator)}[/]"
        table.add_row(name, milliseconds(kernel.seconds), f"{kernel.share:.1%}", str(kernel.calls), kernel.origin)
    return table


def short_name(name: str) -> str:
    """A kernel's name without what its templates and parameters say; at most 80 characters."""
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if "::" in text or text.startswith("void "):
        text = text.removeprefix("void ").split("(", 1)[0]
    depth, kept = 0, []
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">" and depth > 0:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    short = "".join(kept).strip() or name
    return short if len(short) <= 80 else short[:79] + "…"
