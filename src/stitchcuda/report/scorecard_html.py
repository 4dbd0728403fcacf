"""One scorecard as a part of an HTML page: four marks with their evidence, and the reward with all its parts."""

from __future__ import annotations

from html import escape

from stitchcuda.report.scorecard import TITLES, Scorecard
from stitchcuda.reward.model import DIMENSIONS, HIGHEST, Reward
from stitchcuda.reward.rubric import load

CARD_STYLE = """
:root { --good: #1a7f4b; --middle: #9a6b00; --bad: #b3372f; }
@media (prefers-color-scheme: dark) { :root { --good: #58c48c; --middle: #d9ab45; --bad: #ef8079; } }
.card { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: .9rem;
  margin: .8rem 0; }
.dimension { border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; overflow-wrap: anywhere; }
.dimension h3 { font-size: .98rem; margin: 0; display: flex; justify-content: space-between; gap: 1rem;
  align-items: baseline; }
.dimension h3 b { font-size: 1.25rem; white-space: nowrap; } .dimension h3 small { font-weight: 400; font-size: .8rem; }
.dimension p { margin: .3rem 0; font-size: .86rem; } .dimension ul { margin: .4rem 0 0; padding-left: 1.1rem; }
.dimension li { font-size: .9rem; margin: .15rem 0; }
.pips { display: flex; gap: 4px; margin: .45rem 0; }
.pips i { height: 7px; flex: 1; border-radius: 3px; background: var(--line); }
.high i.on { background: var(--good); } .middle i.on { background: var(--middle); }
.low i.on { background: var(--bad); }
.formula { font: .92rem/1.6 ui-monospace, monospace; background: var(--lane); border-radius: 6px; padding: .6rem .9rem;
  overflow-wrap: anywhere; }
"""


def scorecard_html(card: Scorecard) -> str:
    """The four dimensions and the reward."""
    by = f"by {card.marks.source}, from the {card.tier} tier's evaluation"
    by += "" if card.profiled else "; without profiles, so that some of it could not be seen"
    return "\n".join(
        [
            f"<p><b>{card.marks.total:g} of {HIGHEST * len(DIMENSIONS)}</b> "
            f'<span class="faint">marked as written from scratch, {escape(by)}</span></p>',
            f'<div class="card">{"".join(_dimension(card, index) for index in range(len(DIMENSIONS)))}</div>',
            _reward(card),
        ]
    )


def _dimension(card: Scorecard, index: int) -> str:
    name = DIMENSIONS[index]
    given = card.marks.marks[name]
    criterion = load(card.marks.skill).criterion(name)
    colour = "high" if given.score >= 4 else "middle" if given.score >= 3 else "low"
    pips = "".join(f"<i{' class=on' if given.score >= level else ''}></i>" for level in range(1, HIGHEST + 1))
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in given.reasons)
    anchor = ""
    if card.status == "correct":
        said = load(card.marks.skill).anchor(name, given.score)
        anchor = f'<p class="faint">level {int(given.score)}: {escape(said)}</p>'
    return (
        f'<section class="dimension"><h3>{escape(TITLES[name])} <b>{given.score:g} <small>of {HIGHEST}</small>'
        f'</b></h3><div class="pips {colour}" role="img" aria-label="{given.score:g} of {HIGHEST}">{pips}</div>'
        f'<p class="faint">{escape(criterion.question)}</p><ul>{reasons}</ul>{anchor}</section>'
    )


def _reward(card: Scorecard) -> str:
    found = card.reward
    if found is None:
        return f'<p class="formula">no reward: {escape(card.problem)}</p>'
    if found.speedup is None or found.multiplier is None:
        why = ", ".join(found.hacks) if found.hack else card.status
        return f'<p class="formula"><b>reward 0</b>: {escape(why)}</p>'
    settings = found.settings
    weight = settings.weight(found.skill)
    line = (
        f"<b>reward {found.value:.3f}</b> = min((s + {settings.tau:g}) × (1 + {weight:g} r), {settings.largest:g}) "
        f"= min(({found.speedup:.3f} + {settings.tau:g}) × {found.multiplier:.3f}, {settings.largest:g})"
    )
    items = "".join(f"<li><span class='faint'>{escape(n)}</span><b>{escape(v)}</b></li>" for n, v in _parts(found))
    return f'<p class="formula">{line}</p><ul class="facts">{items}</ul>'


def _parts(found: Reward) -> list[tuple[str, str]]:
    """Every component by name."""
    speed = f"{found.speedup:.3f}" if found.speedup is not None else ""
    if found.within_interval:
        speed += f" (measured {found.measured:.3f}: within the interval)"
    elif found.measured is not None and found.measured != found.speedup:
        speed += f" (measured {found.measured:.3f}, clipped)"
    parts = [
        ("correct", "yes" if found.correct else "no"),
        ("hack", "yes" if found.hack else "no"),
        (f"s, over {found.against}", speed),
        ("r, from the marks", f"{found.rubric:+.3f}" if found.rubric is not None else ""),
        ("cap", "reached" if found.capped else "not reached"),
    ]
    for name, value in (("over the best stock option", found.over_best), ("over eager", found.over_eager)):
        if value is not None:
            parts.append((name, f"{value:.3f}"))
    return parts
