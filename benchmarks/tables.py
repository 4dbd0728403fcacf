"""Markdown and terminal tables from the result files of ``measure.py``. Reads data, measures nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

STOCK = ("eager", "cuda_graph", "compile", "compile_reduce_overhead", "compile_max_autotune")
HEADS = {
    "eager": "eager",
    "cuda_graph": "graph",
    "compile": "compile",
    "compile_reduce_overhead": "reduce-overhead",
    "compile_max_autotune": "max-autotune",
}
OWN_SHARE = 0.10
"""Device time in own kernels from which a program counts as more than host work."""

Entry = dict[str, Any]


def page(document: dict[str, Any]) -> str:
    """The whole Markdown page: a table per verb, ill-conditioned tasks apart, means, provenance."""
    entries: list[Entry] = document["items"]
    parts = [f"# {document.get('title') or 'Measurements'}", ""]
    optimised = [e for e in entries if e["verb"] == "optimize"]
    if optimised:
        apart = [e for e in optimised if "ill_conditioned" in (_result(e).get("labels") or [])]
        plain = [e for e in optimised if e not in apart]
        parts += [*_optimised(plain), ""]
        if apart:
            parts += ["Reported apart, because the task's own rounding is amplified beyond any budget:", ""]
            parts += [*_optimised(apart), ""]
        parts += [*_summary(plain, apart), ""]
    for verb, make in (("baseline", _baselines), ("evaluate", _evaluated), ("script", _scripts)):
        chosen = [e for e in entries if e["verb"] == verb]
        if chosen:
            parts += [*make(chosen), ""]
    return "\n".join([*parts, *_provenance(entries)]).rstrip() + "\n"


def short_table(document: dict[str, Any]) -> str:
    """One line an item, for a terminal or a log of 80 columns."""
    lines = []
    for entry in document["items"]:
        result = _result(entry)
        speed = result.get("speedup") or {}
        census = result.get("census") or {}
        state = "pending" if entry.get("provisional") else str(result.get("status") or f"exit {entry['exit']}")
        if entry["verb"] == "baseline" and result.get("best"):
            best = str(result["best"])
            lines.append(f"{_name(entry)[-34:]:34} best {HEADS.get(best, best)}, {_ms(_median(result, best))} ms")
            continue
        lines.append(
            f"{_name(entry)[-34:]:34} {state[:15]:15} over best {_times(speed.get('over_best')):>6}"
            f" eager {_times(speed.get('eager')):>6} own {_percent(census.get('own')):>4}"
        )
    return "\n".join(lines)


def _result(entry: Entry) -> dict[str, Any]:
    """An item's JSON as an object; a list (several baselines) gives its first."""
    result = entry.get("result")
    if isinstance(result, list):
        result = result[0] if result else None
    return result if isinstance(result, dict) else {}


def _name(entry: Entry) -> str:
    return str(_result(entry).get("task") or entry["item"])


def _median(result: dict[str, Any], option: str) -> float | None:
    """A stock option's median seconds in a baseline row."""
    return ((result.get("timings") or {}).get(option) or {}).get("median")


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=_name)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.1f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *(_row(r) for r in rows)]


def _columns(entries: Sequence[Entry], field: str) -> list[str]:
    """The stock options that any of the entries has."""
    return [name for name in STOCK if any(name in (_result(e).get(field) or {}) for e in entries)]


def _optimised(entries: Sequence[Entry]) -> list[str]:
    stock = _columns(entries, "seconds")
    head = ["task", "class", "status", "**over best**", "over eager", "program", *(HEADS[s] for s in stock)]
    rows = []
    for entry in _sorted(entries):
        result = _result(entry)
        seconds, speed = result.get("seconds") or {}, result.get("speedup") or {}
        census = result.get("census") or {}
        status = str(result.get("status") or "failed")
        if entry.get("provisional"):
            status = "pending"
        best = speed.get("over_best")
        rows.append(
            [
                _name(entry),
                str(result.get("precision", "")),
                status,
                f"**{_times(best)}**" if best is not None else "",
                _times(speed.get("eager")),
                _ms(seconds.get("program")),
                *(_ms(seconds.get(s)) for s in stock),
                _percent(census.get("own")),
                str(census.get("label", "")),
                ", ".join(x for x in result.get("labels") or [] if x != "ill_conditioned"),
                str(result.get("run", "")).rsplit("/", 1)[-1],
            ]
        )
    times = "Milliseconds per call, median; all options of a row are of the same precision class."
    return [times, "", *_table([*head, "own share", "kernels", "labels", "run"], rows)]


def means(values: Sequence[float]) -> tuple[float, float, float]:
    """Arithmetic mean, geometric mean (0 when any value is 0) and median."""
    if not values:
        return math.nan, math.nan, math.nan
    geometric = math.exp(statistics.fmean(math.log(v) for v in values)) if min(values) > 0 else 0.0
    return statistics.fmean(values), geometric, statistics.median(values)


def _summary(entries: Sequence[Entry], apart: Sequence[Entry]) -> list[str]:
    """Counts, and the three means with failures as 0 and without them."""
    everything = [*entries, *apart]
    correct = [e for e in everything if _result(e).get("status") in ("correct", "no_gain")]
    own = [e for e in correct if ((_result(e).get("census") or {}).get("own") or 0.0) >= OWN_SHARE]
    lines = [
        f"{len(correct)} of {len(everything)} correct; {len(own)} with {OWN_SHARE:.0%} or more of device time in own"
        " kernels." + (" Means are without the tasks reported apart." if apart else ""),
        "",
    ]
    rows = []
    for name, label in (("over_best", "over the best stock option"), ("eager", "over eager")):
        speeds = [((_result(e).get("speedup") or {}).get(name) or 0.0) if e in correct else 0.0 for e in entries]
        rows.append([label, "failures as 0", *(_times(v) for v in means(speeds))])
        rows.append([label, "without failures", *(_times(v) for v in means([s for s in speeds if s > 0]))])
    return [*lines, *_table(["speedup", "", "arithmetic", "geometric", "median"], rows)]


def _baselines(entries: Sequence[Entry]) -> list[str]:
    medians = {
        e["key"]: {name: t.get("median") for name, t in (_result(e).get("timings") or {}).items()} for e in entries
    }
    stock = [s for s in STOCK if any(s in row for row in medians.values())]
    rows = [
        [
            _name(e),
            str(_result(e).get("precision", "")),
            *(_ms(medians[e["key"]].get(s)) for s in stock),
            HEADS.get(str(_result(e).get("best")), str(_result(e).get("best") or e.get("error", ""))[:60]),
        ]
        for e in _sorted(entries)
    ]
    head = ["task", "class", *(HEADS[s] for s in stock), "best"]
    return ["Stock options, milliseconds per call, median.", "", *_table(head, rows)]


def _evaluated(entries: Sequence[Entry]) -> list[str]:
    rows = []
    for e in entries:
        result = _result(e)
        speed, census = result.get("speedup") or {}, result.get("census") or {}
        rows.append(
            [
                e["item"],
                str(result.get("precision", "")),
                str(result.get("status") or "failed"),
                _times(speed.get("over_best")),
                _times(speed.get("eager")),
                _percent(census.get("own")),
            ]
        )
    return _table(["task = program", "class", "status", "over best", "over eager", "own share"], rows)


def _scripts(entries: Sequence[Entry]) -> list[str]:
    lines: list[str] = []
    for e in entries:
        lines += [f"`{e['item']}`: exit {e['exit']} after {e['seconds']} s", "", "```"]
        lines += [str(e.get("output") or e.get("error") or "").rstrip(), "```", ""]
    return lines


def _provenance(entries: Sequence[Entry]) -> list[str]:
    """The distinct machines, versions and commits behind the entries, with the dates that they span."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for e in entries:
        facts = {k: str(v) for k, v in (e.get("provenance") or {}).items()}
        date = facts.pop("date", "")
        groups.setdefault(tuple(sorted(facts.items())), []).append(date)
    lines = ["Measured by `benchmarks/measure.py`:", ""] if groups else []
    order = ("gpu", "driver", "cuda", "torch", "python", "cpu", "cores", "system", "commit")
    for facts_of, dates in groups.items():
        facts = dict(facts_of)
        told = ", ".join(f"{k} {facts[k]}" for k in order if facts.get(k))
        span = min(dates) if min(dates) == max(dates) else f"{min(dates)} to {max(dates)}"
        lines.append(f"- {told}; {span}; {len(dates)} item{'s' if len(dates) > 1 else ''}")
    return lines
