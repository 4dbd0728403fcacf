"""A Profile as one HTML page that needs nothing else: timeline and roofline as inline SVG, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import BY_HAND, Profile
from stitchcuda.profiling.recording import Recording
from stitchcuda.profiling.rules import Work, milliseconds
from stitchcuda.profiling.table import IDLE_TOLD, loops_told, path_note, processor_told, short_name
from stitchcuda.report.roofline_svg import roofline_svg
from stitchcuda.report.timeline_svg import legend, timeline_svg
from stitchcuda.task.model import Precision

STYLE = """
:root { --text: #1d2129; --faint: #68707d; --line: #d9dde3; --lane: #f4f6f8; --page: #ffffff; --mark: #1f5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8ec; --faint: #9aa3b0; --line: #3a4048; --lane: #22262c; --page: #16191d; --mark: #7fb2ea; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.faint, .tick { color: var(--faint); fill: var(--faint); }
.verdict { border-left: 4px solid var(--mark); padding: .3rem .9rem; margin: 1rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1rem 0; padding: 0; list-style: none; }
.facts b { display: block; font-size: 1.15rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; max-width: 34rem; overflow: hidden; text-overflow: ellipsis; }
td.wide { white-space: normal; text-align: left; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; } svg.roofline { max-width: 760px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--text); } svg .tick { fill: var(--faint); }
svg text.in { fill: #fff; font-size: 10.5px; pointer-events: none; }
.lane { fill: var(--lane); } .grid { stroke: var(--line); stroke-width: 1; }
.roof { stroke: var(--text); stroke-width: 1.6; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--faint); margin: .4rem 0; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px; }
"""


def page(
    profile: Profile,
    recording: Recording | None,
    *,
    title: str,
    device: Device,
    work: Work | None = None,
    precision: Precision = "fp32",
) -> str:
    """The whole page. Sections without data are left out."""
    line = profile.timeline
    source = f"{profile.source} {profile.version}".strip()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(profile.subject)} on {escape(device.name)}, {escape(precision)}, recorded by'
        f" {escape(source)}; all times are per call</p>",
        f'<div class="verdict"><b>{escape(profile.bottleneck)}'
        f"{f' ({escape(profile.cause)})' if profile.cause != 'none' else ''}</b><br>{escape(profile.evidence)}"
        f"{f'<br><b>next:</b> {escape(profile.suggestion)}' if profile.suggestion else ''}</div>",
        _facts(profile),
    ]
    drawn = timeline_svg(recording) if recording is not None else ""
    if drawn:
        parts += ["<h2>One call</h2>", legend(), f'<div class="scroll">{drawn}</div>']
    if line.idle_seconds:
        rows = [
            (IDLE_TOLD[kind], milliseconds(seconds), _share(seconds, line.wall_seconds))
            for kind, seconds in sorted(line.idle_seconds.items(), key=lambda item: -item[1])
        ]
        parts += ["<h2>What the host does while the device idles</h2>", _table(("", "time", "of the call"), rows)]
    if profile.critical_path:
        path = [
            (short_name(p.what), p.where, milliseconds(p.seconds), f"{p.share:.1%}", str(p.count))
            for p in profile.critical_path
        ]
        note = path_note(profile)
        told = f"<p>It is{note}.</p>" if note else ""
        parts += ["<h2>Critical path</h2>", told, _table(("", "where", "time", "of the call", "times"), path)]
    if profile.operators:
        operators = [(o.name, milliseconds(o.seconds), f"{o.share:.1%}", str(o.kernels)) for o in profile.operators]
        parts += ["<h2>Device time by operator</h2>", _table(("operator", "time", "share", "kernels"), operators)]
    parts += [f"<h2>{'Operators' if recording and recording.target == 'cpu' else 'Kernels'}</h2>", _kernels(profile)]
    roof = roofline_svg(profile, device.ceilings, work, precision)
    if roof:
        parts += ["<h2>Roofline, with ceilings measured on this device</h2>", f'<div class="scroll">{roof}</div>']
    if profile.diagnoses:
        parts += ["<h2>Kernels by counters</h2>", _diagnoses(profile)]
    if profile.processor is not None:
        parts += [
            "<h2>Processor, by perf</h2>",
            f"<p>{escape(processor_told(profile.processor))}</p>",
            _events(profile),
        ]
    if profile.loops:
        rows = [
            (
                f"{p.file}:{p.line}",
                f"{p.vector_bytes} bytes" if p.vector_bytes else "" if p.reason == BY_HAND else "scalar",
                p.reason,
            )
            for p in profile.loops
        ]
        parts += [
            "<h2>Loops, as the compiler reports them</h2>",
            f"<p>{escape(loops_told(profile.loops, 0))}</p>",
            _table(("loop", "vectors", "reason"), rows),
        ]
    if profile.remarks:
        parts += ["<h2>Remarks</h2><ul>", *(f"<li>{escape(remark)}</li>" for remark in profile.remarks), "</ul>"]
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _facts(profile: Profile) -> str:
    line = profile.timeline
    told = [
        ("wall", milliseconds(line.wall_seconds)),
        ("busy", f"{milliseconds(line.busy_seconds)} ({_share(line.busy_seconds, line.wall_seconds)})"),
        ("idle", f"{milliseconds(line.gap_seconds)} ({_share(line.gap_seconds, line.wall_seconds)})"),
        ("copies", milliseconds(line.copy_seconds)),
        ("launches or operators", str(line.launches)),
    ]
    if line.event_seconds:
        told.append(("span by CUDA events", milliseconds(line.event_seconds)))
    if line.device_seconds > line.busy_seconds:
        told.append(("overlapping", milliseconds(line.device_seconds - line.busy_seconds)))
    if line.peak_bytes:
        told.append(("peak device memory", f"{line.peak_bytes / 2**20:,.0f} MiB"))
    items = "".join(f"<li><span class='faint'>{escape(name)}</span><b>{escape(value)}</b></li>" for name, value in told)
    return f'<ul class="facts">{items}</ul>'


def _kernels(profile: Profile) -> str:
    rows = [
        (
            short_name(k.name) + (f" · {k.operator}" if k.operator and k.operator != k.name else ""),
            milliseconds(k.seconds),
            f"{k.share:.1%}",
            str(k.calls),
            k.origin,
        )
        for k in profile.kernels
    ]
    return _table(("name", "time", "share", "calls", "whose"), rows)


def _diagnoses(profile: Profile) -> str:
    body = "".join(
        f"<tr><td>{escape(short_name(d.kernel))}</td><td>{escape(d.cause)}</td><td>{d.kernel_gain:.2f}x</td>"
        f'<td>{d.program_gain:.2f}x</td><td class="wide">{escape(d.evidence)}. {escape(d.suggestion)}.</td></tr>'
        for d in profile.diagnoses
    )
    head = "<tr><th>kernel</th><th>cause</th><th>its gain</th><th>the call's</th><th>evidence, suggestion</th></tr>"
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _events(profile: Profile) -> str:
    processor = profile.processor
    rows = [(name, f"{value:,.0f}") for name, value in processor.events.items()] if processor is not None else []
    return _table(("event", "per call"), rows) if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _share(part: float, whole: float) -> str:
    return f"{min(part / whole, 1.0):.0%}" if whole > 0 else "0%"
