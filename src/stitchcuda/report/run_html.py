"""A run as one HTML page that needs nothing else: what was found, its scorecard, all programs, and where time goes."""

from __future__ import annotations

from html import escape
from pathlib import Path

from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.report.profile_html import STYLE as PROFILE_STYLE
from stitchcuda.report.scorecard import Scorecard, profile_of, scorecards
from stitchcuda.report.scorecard_html import CARD_STYLE, scorecard_html
from stitchcuda.report.terminal import earlier_line, seconds_text, spent_text, times
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.result import Result
from stitchcuda.workflow.storage import full_disk_is_an_error, write_whole
from stitchcuda.workflow.story import Story, read_story

STYLE = (
    PROFILE_STYLE
    + CARD_STYLE
    + """
h1, h2, p, td, li, summary { overflow-wrap: anywhere; }
th.text, td.text { text-align: left; white-space: normal; min-width: 9rem; max-width: 30rem; }
tr.best td { font-weight: 600; } tr.best td.text { font-weight: 400; }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { background: var(--lane); padding: .8rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
details { margin: .6rem 0; } summary { cursor: pointer; }
td.bars { width: 45%; min-width: 7rem; text-align: left; }
td .bar { display: inline-block; height: .7em; background: var(--mark); border-radius: 2px; vertical-align: baseline; }
"""
)
REPORT = "report.html"
MOST_CHARACTERS = 60_000
"""Of one file that is shown; what is longer is cut, and said so."""


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html`` into a run's folder. Raises RunError for a damaged run, InfrastructureError on a full
    disk."""
    story = read_story(folder)
    number = story.best
    program = folder.load("best") if folder.best.is_dir() else None
    profile = profile_of(folder, f"{number:03d}") if number is not None else None
    path = folder.path / REPORT
    with full_disk_is_an_error(folder.path):
        write_whole(path, page(story, scorecards(folder), program, profile).encode("utf-8", "replace"))
    return path


def page(
    story: Story, cards: dict[int, Scorecard], program: Program | None = None, profile: Profile | None = None
) -> str:
    """The whole page; ``program`` is the best one, whose source is shown, and ``profile`` its own. Sections without
    data are left out."""
    result = story.result
    title = f"{story.task or 'run'} by {story.mind}" if story.mind else story.task or "run"
    best = story.best
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(_where(story))}</p>',
        _verdict(story),
    ]
    if result is not None and result.number is not None:
        parts.append(_facts(result))
    if times_table := _times(story):
        parts += ["<h2>Seconds a call</h2>", times_table]
    if best is not None and best in cards:
        parts += [f"<h2>Scorecard of program {best:03d}</h2>", scorecard_html(cards[best])]
    if result is not None and result.findings:
        items = "".join(
            f"<li>{escape(f.severity)}: {escape(f.rule)}: {escape(f.evidence)}</li>" for f in result.findings
        )
        parts += ["<h2>Findings</h2>", f"<ul>{items}</ul>"]
    if story.attempts:
        parts += ["<h2>Programs</h2>", _attempts(story.attempts, cards, best)]
        parts += [_others(card) for number, card in sorted(cards.items()) if number != best]
    if story.plans:
        parts += ["<h2>Plan</h2>", *(_plan(plan) for plan in story.plans)]
    if story.reference is not None:
        parts += ["<h2>Where the task's own time goes</h2>", _profile(story.reference)]
    if profile is not None:
        parts += ["<h2>Where the best program's time goes</h2>", _profile(profile)]
    if program is not None:
        parts += ["<h2>The best program</h2>", *(_file(name, program.files[name]) for name in sorted(program.files))]
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _where(story: Story) -> str:
    result = story.result
    told = [story.device]
    if result is not None:
        told += [f"precision class {result.precision}", f"tier {result.tier}" if result.tier else ""]
    told.append(story.run)
    return ", ".join(part for part in told if part)


def _verdict(story: Story) -> str:
    result = story.result
    if result is None:
        leads = f"; program {story.best:03d} leads" if story.best is not None else ""
        lines = [f"<b>{escape(story.status)}</b>", f"{len(story.attempts)} programs so far{leads}"]
        if story.earlier is not None:
            lines.append(escape(earlier_line(story.earlier)))
        return _box(lines)
    lines = [f"<b>{escape(result.status)}</b>", escape(result.message)]
    if result.target_speedup is not None:
        met = "met" if result.target_met else "not met"
        lines.append(escape(f"target {result.target_speedup:g}x over the best stock option: {met}"))
    if result.stopped and result.status != "no_rewrite":  # which says why already
        lines.append(escape(f"search ended: {result.stopped}"))
    return _box(lines)


def _box(lines: list[str]) -> str:
    return f'<div class="verdict">{"<br>".join(lines)}</div>'


def _facts(result: Result) -> str:
    told = [("over the best stock option", times(result.over_best) or "not measured")]
    if "eager" in result.speedup:
        told.append(("over eager", times(result.speedup["eager"])))
    if result.census is not None:
        told.append(("own kernels", f"{result.census.own:.0%} of the time ({result.census.label})"))
    if result.sol is not None:
        told.append(("speed of light", f"{result.sol.fraction:.0%} of the {result.sol.binds} bound"))
    if result.author not in ("", result.mind):
        told.append(("written by", result.author))
    told.append(("used", spent_text(result.spent, None, paid=result.spent.requests > 0)))
    if result.labels:
        told.append(("labels", ", ".join(result.labels)))
    items = "".join(f"<li><span class='faint'>{escape(name)}</span><b>{escape(value)}</b></li>" for name, value in told)
    return f'<ul class="facts">{items}</ul>'


def _times(story: Story) -> str:
    """The program beside every stock option, each with a bar."""
    result = story.result
    seconds = dict(result.seconds) if result is not None and result.seconds else dict(story.baselines)
    if not seconds:
        return ""
    longest = max(seconds.values())
    rows = []
    for name, value in sorted(seconds.items(), key=lambda item: item[1]):
        over = result.speedup.get(name) if result is not None else None
        width = max(1.0, 100 * value / longest) if longest > 0 else 1.0
        rows.append(
            f"<tr{' class=best' if name == 'program' else ''}><td>{escape(name)}</td>"
            f"<td>{escape(seconds_text(value))}</td><td>{escape(times(over))}</td>"
            f'<td class="bars"><span class="bar" style="width:{width:.1f}%"></span></td></tr>'
        )
    head = "<tr><th></th><th>median</th><th>program over it</th><th></th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _attempts(attempts: list[Attempt], cards: dict[int, Scorecard], best: int | None) -> str:
    head = (
        '<tr><th>program</th><th class="text">idea / step</th><th>status</th><th>over best stock</th>'
        '<th>over eager</th><th>marks of 20</th><th>reward</th><th class="text">diagnosis</th></tr>'
    )
    rows = []
    for attempt in attempts:
        name = attempt.idea if attempt.idea == attempt.step else f"{attempt.idea} / {attempt.step}"
        card = cards.get(attempt.number)
        marks = f"{card.marks.total:g}" if card is not None else ""
        gained = f"{card.reward.value:.2f}" if card is not None and card.reward is not None else ""
        right = attempt.status == "correct"
        rows.append(
            f"<tr{' class=best' if attempt.number == best else ''}><td>{attempt.number:03d}"
            f'{" ★" if attempt.number == best else ""}</td><td class="text">{escape(name)}</td>'
            f'<td class="{"good" if right else "bad"}">{escape(attempt.status)}</td>'
            f"<td>{escape(times(attempt.over_best))}</td><td>{escape(times(attempt.speedup))}</td>"
            f'<td>{marks}</td><td>{gained}</td><td class="text">{escape(attempt.diagnosis)}</td></tr>'
        )
    note = "speedups as the search measured them; marks and reward of the best program by its final check"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div><p class="faint">{note}</p>'


def _others(card: Scorecard) -> str:
    """The scorecard of a program that is not the best, folded away."""
    summary = f"Scorecard of program {card.number:03d}: {card.marks.total:g} of 20, {card.status}"
    return f"<details><summary>{escape(summary)}</summary>{scorecard_html(card)}</details>"


def _plan(plan: Plan) -> str:
    ideas = "".join(
        f"<li>{escape(idea.name)}<ul>{''.join(f'<li>{escape(step.title)}</li>' for step in idea.steps)}</ul></li>"
        for idea in plan.ideas
    )
    return f"<p>{escape(plan.summary)}</p><ul>{ideas}</ul>"


def _profile(profile: Profile) -> str:
    line = profile.timeline
    rows = "".join(
        f"<tr><td>{escape(k.name[:120])}</td><td>{escape(seconds_text(k.seconds))}</td><td>{k.share:.1%}</td>"
        f"<td>{k.calls}</td><td>{escape(k.origin)}</td></tr>"
        for k in profile.kernels[:10]
    )
    head = "<tr><th>kernel or operator</th><th>time</th><th>share</th><th>calls</th><th>whose</th></tr>"
    return (
        f"<p><b>{escape(profile.bottleneck)}</b>: {escape(profile.evidence)}; wall "
        f"{escape(seconds_text(line.wall_seconds))}, busy {escape(seconds_text(line.busy_seconds))}, {line.launches} "
        f'launches, by {escape(profile.source)}.</p><div class="scroll"><table>{head}{rows}</table></div>'
    )


def _file(name: str, text: str) -> str:
    cut = len(text) > MOST_CHARACTERS
    shown = escape(text[:MOST_CHARACTERS]) + (f"\n... {len(text) - MOST_CHARACTERS:,} characters more" if cut else "")
    lines = text.count("\n")
    return f"<details><summary>{escape(name)}, {lines} lines</summary><pre>{shown}</pre></details>"
