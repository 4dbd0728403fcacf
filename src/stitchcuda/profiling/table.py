"""A Profile for people: a table on the terminal. The data itself is ``profiling.model``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stitchcuda.profiling.model import BY_HAND, Idle, KernelTime, Loop, Processor, Profile
from stitchcuda.profiling.rules import milliseconds

BAR = 24
"""Characters of a full bar."""
PARTS = 6
"""Parts of the critical path and operators shown."""
SLOWED = 1.1
"""From here on a recorded call, so much longer than one without the profiler, is not read without a word on it."""
IDLE_TOLD: dict[Idle, str] = {
    "launch": "launching kernels",
    "synchronise": "waiting for the device",
    "copy": "copying",
    "allocation": "allocating device memory",
    "host": "doing other work",
}


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
    counts = [
        f"{line.launches} kernels or operators a call",
        f"{line.graph_launches} CUDA graphs" if line.graph_launches else "",
        f"{line.synchronisations} waits for the device" if line.synchronisations else "",
        f"{line.allocations} allocations or frees" if line.allocations else "",
        f"{line.streams} streams" if line.streams > 1 else "",
        f"peak {line.peak_bytes / 2**20:,.0f} MiB" if line.peak_bytes else "",
    ]
    console.print(", ".join(filter(None, counts)))
    if line.idle_seconds:
        causes = sorted(line.idle_seconds.items(), key=lambda item: -item[1])
        told = ", ".join(f"{IDLE_TOLD[kind]} {milliseconds(seconds)}" for kind, seconds in causes if seconds > 0)
        console.print(f"while the device idles the host is {told}", highlight=False)
    console.print()
    console.print(_kernels(profile.kernels[:top]))
    left = len(profile.kernels) - top
    if left > 0:
        console.print(f"[dim]{left} more, {sum(k.share for k in profile.kernels[top:]):.1%} of the busy time[/]")
    console.print()
    console.print(f"[bold]{profile.bottleneck}[/]: {escape(profile.evidence)}", highlight=False)
    if profile.suggestion:
        console.print(f"[bold]next[/]: {escape(profile.suggestion)}", highlight=False)
    _more(profile, console)


def _more(profile: Profile, console: Console) -> None:
    """What only some sources tell: critical path, operators, counters, and what could not be had."""
    if profile.critical_path:
        console.print()
        console.print(_parts("critical path", [(p.what, p.seconds, p.share) for p in profile.critical_path[:PARTS]]))
        if note := path_note(profile):
            console.print(f"[dim]the path is{note}[/]", highlight=False)
    if profile.operators:
        console.print()
        console.print(
            _parts("device time by operator", [(o.name, o.seconds, o.share) for o in profile.operators[:PARTS]])
        )
    for found in profile.diagnoses:
        console.print()
        gains = f"{found.kernel_gain:.2f}x of it, {found.program_gain:.2f}x of the call at most"
        console.print(f"[bold]{escape(short_name(found.kernel))}[/]: {found.cause}, {gains}", highlight=False)
        console.print(f"  {escape(found.evidence)}; {escape(found.suggestion)}", highlight=False)
    if profile.processor is not None:
        console.print()
        console.print(f"[bold]processor[/]: {escape(processor_told(profile.processor))}", highlight=False)
    if profile.loops:
        console.print()
        console.print(f"[bold]loops[/]: {escape(loops_told(profile.loops))}", highlight=False)
    for remark in profile.remarks:
        console.print(f"[dim]note: {escape(remark)}[/]", highlight=False)


def _parts(title: str, rows: list[tuple[str, float, float]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(title, overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, seconds, share in rows:
        table.add_row(escape(short_name(name)), milliseconds(seconds), f"{share:.1%}")
    return table


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


def processor_told(processor: Processor) -> str:
    """What perf counted in a call, in a sentence: the label, the numbers behind it, and the events of the system."""
    told = f"{processor.bottleneck}; {processor.evidence}" if processor.bottleneck != "unknown" else processor.evidence
    noticed = {"page-faults": "page faults", "context-switches": "context switches"}
    return told + "".join(
        f", {processor.events[event]:.0f} {words} a call"
        for event, words in noticed.items()
        if processor.events.get(event, 0.0) >= 1
    )


def loops_told(loops: Sequence[Loop], limit: int = 6) -> str:
    """How many loops the compiler vectorised, and the first ``limit`` of the others with its reasons."""
    left = sorted((loop for loop in loops if not loop.vector_bytes), key=lambda loop: not loop.reason)
    by_hand = [f"{loop.file}:{loop.line}" for loop in left if loop.reason == BY_HAND]
    scalar = [loop for loop in left if loop.reason != BY_HAND]
    done = [loop.vector_bytes for loop in loops if loop.vector_bytes]
    widths = f" ({', '.join(f'{width} bytes' for width in sorted(set(done)))} wide)" if done else ""
    told = f"{len(done)} of {len(loops)} vectorised{widths}"
    named = [f"{loop.file}:{loop.line}" + (f" ({loop.reason})" if loop.reason else "") for loop in scalar[:limit]]
    more = f" and {len(scalar) - limit} more" if len(scalar) > limit else ""
    if by_hand and limit:
        told += f"; with {BY_HAND}: {', '.join(by_hand[:limit])}"
        told += f" and {len(by_hand) - limit} more" if len(by_hand) > limit else ""
    return told + (f"; scalar: {', '.join(named)}{more}" if named else "")


def path_note(profile: Profile) -> str:
    """What must be known to read the critical path: of a call whose host was slowed; '' where it hardly was."""
    if profile.slowed < SLOWED:
        return ""
    return f" of a recorded call, {profile.slowed:.1f}x as long as without the profiler, which slows the host alone"


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
